#include "cli/options/linear_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "cli/options/attention_options.h"
#include "cli/options/options.h"
#include "cli/terminal/say.h"
#include "core/error.h"
#include "core/quote.h"

namespace sluice::impl::cli {
namespace {

constexpr const char* kKindHelp =
    "dense   exact\n"
    "gsi     rows near a calibrated basis need its image only,\n"
    "        the others are exact; needs --bases\n"
    "graded  each row by its largest coordinates alone";

void check_flags(const LinearFlags& flags, bool gsi, bool any, bool joint) {
  if (joint && flags.bases.empty())
    throw CLI::ValidationError(
        "--joint needs bases: make them with sluice calibrate --selection normed, and give them "
        "with --bases");
  const char* of_gsi = !flags.ranks.empty()             ? "--rank"
                       : flags.adaptive                 ? "--adaptive"
                       : !flags.bases.empty() && !joint ? "--bases"
                                                        : nullptr;
  if (!any) {
    if (of_gsi != nullptr)
      throw CLI::ValidationError(
          fmt::format("{} has no effect on dense linear layers, give --linear gsi", of_gsi));
    if (!flags.epsilons.empty())
      throw CLI::ValidationError(
          "--epsilon has no effect on dense linear layers, give --linear gsi or graded");
    return;
  }
  if (gsi && flags.bases.empty())
    throw CLI::ValidationError(
        "--linear gsi needs bases: make them with sluice calibrate, and give them with --bases");
  if (!gsi && of_gsi != nullptr)
    throw CLI::ValidationError(fmt::format("{} has an effect on --linear gsi alone", of_gsi));
}

}  // namespace

void add_linear_options(CLI::App& command, LinearFlags& flags, bool lists) {
  const std::string several = lists ? "; several with commas" : "";
  const auto add = [&](const char* name, auto& value, const std::string& help) {
    return command.add_option(name, value, help)->group("Linear layers");
  };
  const auto add_list = [&](CLI::Option* option) {
    option->allow_extra_args(false);
    if (lists)
      option->delimiter(',')->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    else
      option->expected(1);
  };
  add_list(add("--linear", flags.kinds,
               "What the blocks' linear layers do (default dense" + several + "):\n" + kKindHelp)
               ->check(CLI::IsMember({"dense", "gsi", "graded"})));
  add_list(
      add("--rank", flags.ranks, "Directions of the bases in use (default all they have)" + several)
          ->check(CLI::Range(int64_t{1}, int64_t{1} << 30)));
  add_list(add("--epsilon", flags.epsilons,
               "Share of a row's norm that may be left out (default 0.1)" + several)
               ->check(number_between(0, 1, "0 to 1")));
  add("--adaptive", flags.adaptive,
      "Directions that a sequence may add to each basis from its own\n"
      "tokens (default 0)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  add("--bases", flags.bases, "File of bases, from sluice calibrate");
}

std::vector<UniformLinear> linear_choices(const LinearFlags& flags, bool joint) {
  std::vector<LinearKind> kinds;
  for (const std::string& name : distinct(flags.kinds)) kinds.push_back(*linear_of(name));
  const auto has = [&](LinearKind kind) {
    return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
  };
  const bool gsi = has(LinearKind::kGsi), graded = has(LinearKind::kGraded);
  check_flags(flags, gsi, gsi || graded, joint);
  if (!gsi && !graded) return {};
  const std::vector<double> epsilons = flags.epsilons.empty()
                                           ? std::vector<double>{UniformLinear{}.epsilon}
                                           : distinct(flags.epsilons);
  std::vector<UniformLinear> choices;
  for (const LinearKind kind : kinds) {
    if (kind == LinearKind::kDense) {
      choices.emplace_back();
      continue;
    }
    std::vector<int64_t> ranks = {0};
    if (kind == LinearKind::kGsi && !flags.ranks.empty()) ranks = distinct(flags.ranks);
    for (const int64_t rank : ranks)
      for (const double epsilon : epsilons)
        choices.push_back({.kind = kind,
                           .rank = rank,
                           .epsilon = epsilon,
                           .adaptive = kind == LinearKind::kGsi ? flags.adaptive.value_or(0) : 0});
  }
  return choices;
}

std::vector<UniformChoice> combined(const std::vector<UniformAttention>& attention,
                                    const std::vector<UniformLinear>& linear) {
  const auto or_dense = [](auto list) {
    if (list.empty()) list.emplace_back();
    return list;
  };
  std::vector<UniformChoice> choices;
  for (const UniformAttention& a : or_dense(attention))
    for (const UniformLinear& l : or_dense(linear))
      if (const UniformChoice choice{.attention = a, .linear = l}; !choice.all_exact())
        choices.push_back(choice);
  return choices;
}

std::optional<SidecarBases> read_bases_of(const LinearFlags& flags, const Checkpoint& checkpoint,
                                          const std::string& text,
                                          std::vector<UniformLinear>& choices) {
  if (flags.bases.empty()) return {};
  SidecarBases read = read_sidecar(flags.bases, checkpoint, text);
  int64_t rank = 0;  // that all linear inputs have
  for (const Basis& basis : read.bases.list)
    if (static_cast<size_t>(basis.input) < kLinearInputs.size())
      rank = rank == 0 ? basis.rank : std::min(rank, basis.rank);
  for (UniformLinear& choice : choices) {
    if (choice.kind != LinearKind::kGsi || choice.rank > 0) continue;
    if (rank == 0)
      throw Error(fmt::format("{}: holds no bases of linear layers", path_label(flags.bases)),
                  "sluice calibrate makes them");
    choice.rank = rank;
  }
  return read;
}

void warn_of_same_text(const std::optional<SidecarBases>& bases) {
  if (bases && bases->origin.same_text == true)
    say("sluice: the bases were calibrated on this very text; on another one fewer rows lie "
        "near them\n");
}

std::vector<Plan> prepared_plans(Model& model, const std::vector<UniformChoice>& choices,
                                 const std::optional<SidecarBases>& bases) {
  std::vector<Plan> plans;
  if (bases) model.prepare_selection(bases->bases);
  for (const UniformChoice& choice : choices) {
    plans.push_back(uniform_plan(choice, model.plan_shape(), model.linear_shape()));
    model.prepare_linear(plans.back().linear, bases ? &bases->bases : nullptr);
  }
  return plans;
}

std::string linear_text(const UniformLinear& choice) {
  std::string text(linear_name(choice.kind));
  if (choice.kind == LinearKind::kDense) return text;
  if (choice.kind == LinearKind::kGsi) text += fmt::format(", rank {}", choice.rank);
  text += fmt::format(", epsilon {}", choice.epsilon);
  return text + (choice.adaptive > 0 ? fmt::format(", adaptive {}", choice.adaptive) : "");
}

std::string choice_text(const UniformChoice& choice, const PlanShape& shape) {
  if (!choice.file.empty()) return "plan " + choice.file;
  return fmt::format("attention {}; linear {}", attention_text(choice.attention, shape),
                     linear_text(choice.linear));
}

}  // namespace sluice::impl::cli
