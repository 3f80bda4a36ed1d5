#include "cli/options/baseline_options.h"

#include <fmt/format.h>

#include <limits>

#include "cli/options/options.h"

namespace sluice::impl::cli {
namespace {

constexpr const char* kBaselineHelp =
    "\n"
    "Other methods, to compare with; each drops what it does not\n"
    "read (docs/baselines.md), --keep says how much it reads:\n"
    "baseline:window  4 first keys and the last ones\n"
    "baseline:quest   pages of 16 by a bound of their scores\n"
    "baseline:pooled  blocks of 64 by scores of mean rows\n"
    "baseline:oracle  the same blocks by their true mass, which\n"
    "                 it takes dense attention to know";

}  // namespace

CLI::Validator mode_or_baseline(const AttentionFlags& flags) {
  const CLI::Validator modes = CLI::IsMember({"dense", "paper", "copy", "keys", "refine"});
  return CLI::Validator(
      [&flags, modes](std::string& text) -> std::string {
        if (!text.starts_with("baseline")) return modes(text);
        if (!flags.baselines)
          return fmt::format("{} is there to compare with, sluice eval and needle alone take it",
                             text);
        return baseline_of(text) ? "" : fmt::format("{} given, expected {}", text, kBaselineNames);
      },
      modes.get_description());
}

void add_baseline_options(CLI::App& command, AttentionFlags& flags) {
  flags.baselines = true;
  CLI::Option* attention = command.get_option("--attention");
  attention->description(attention->get_description() + kBaselineHelp);
  command
      .add_option("--keep", flags.keeps,
                  "What a baseline reads: a share of the context (window), of its\n"
                  "pages (quest), or of the mass that the blocks read have at least\n"
                  "(pooled, oracle); 1 reads everything; several with commas")
      ->group("Attention")
      ->check(number_between(std::numeric_limits<double>::min(), 1, "more than 0, up to 1"))
      ->allow_extra_args(false)
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

std::vector<UniformAttention> baseline_choices(const AttentionFlags& flags,
                                               const UniformAttention& common) {
  std::vector<UniformAttention> choices;
  for (const std::string& name : distinct(flags.modes)) {
    const std::optional<BaselineKind> kind = baseline_of(name);
    if (!kind) continue;
    if (flags.keeps.empty())
      throw CLI::ValidationError(fmt::format("--attention {} needs --keep, 0.1 for example", name));
    for (const double keep : distinct(flags.keeps)) {
      UniformAttention& choice = choices.emplace_back(common);
      choice.mode = AttentionMode::kBaseline;
      choice.baseline = {.kind = *kind, .keep = keep};
    }
  }
  return choices;
}

void check_baseline_device(const std::vector<UniformAttention>& choices,
                           const std::string& device) {
  if (device != "reference") return;
  for (const UniformAttention& choice : choices)
    if (choice.mode == AttentionMode::kBaseline)
      throw CLI::ValidationError(
          fmt::format("--attention {} is not among the reference's plain loops, leave --device out",
                      attention_name(choice)));
}

std::string baseline_text(const BaselinePlan& plan) {
  const auto what = [&]() -> std::string {
    switch (plan.kind) {
      case BaselineKind::kWindow:
        return fmt::format("{} first keys and the last {}", kBaselineSinks,
                           baseline_window(plan.keep, plan.context));
      case BaselineKind::kQuest:
        return fmt::format("{} of {} pages of {}", baseline_pages(plan.keep, plan.context),
                           baseline_pages(1, plan.context), kBaselinePage);
      case BaselineKind::kPooled:
      case BaselineKind::kOracle:
        return fmt::format("blocks of {}", kBaselineBlock);
    }
    SLUICE_CHECK(!"unknown baseline");
  };
  return fmt::format("{}, keep {}: {}", baseline_name(plan.kind), plan.keep, what());
}

}  // namespace sluice::impl::cli
