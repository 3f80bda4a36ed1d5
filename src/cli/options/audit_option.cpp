#include "cli/options/audit_option.h"

#include <fmt/format.h>

#include <cmath>

namespace sluice::impl::cli {

std::string interval_text(const AuditInterval& kl) {
  return std::isinf(kl.high) ? fmt::format("{:.2g}", kl.mean)
                             : fmt::format("{:.2g} ({:.2g} to {:.2g})", kl.mean, kl.low, kl.high);
}

void add_audit_options(CLI::App& command, AuditFlags& flags) {
  CLI::Option* audit =
      command
          .add_option(
              "--audit", flags.every,
              "Measure the loss while decoding: compare the tokens of every pass of N with\n"
              "the exact model, or with --audit-mode step one of N; 0: not at all. A plan\n"
              "whose contract is in danger opens more from there on. generate compares one\n"
              "token in N of the prompt too (replay)")
          ->check(CLI::Range(int64_t{0}, kMostAudited))
          ->capture_default_str();
  command
      .add_option("--audit-mode", flags.mode,
                  "replay: the exact model follows, with a cache of its own. step: single steps\n"
                  "are run exactly on the plan's cache, which leaves out what earlier steps did\n"
                  "to it")
      ->check(CLI::IsMember({"replay", "step"}))
      ->capture_default_str()
      ->needs(audit);
}

void check_audited(const AuditFlags& flags, bool accelerated) {
  if (flags.every > 0 && !accelerated)
    throw CLI::ValidationError(
        "--audit compares a run with the exact model, give --attention, --linear or --plan");
}

AuditOptions audit_options(const AuditFlags& flags, const Acceleration& acceleration,
                           const AttentionPlan& plan) {
  AuditOptions options{.mode = *audit_mode_of(flags.mode), .every = flags.every};
  if (acceleration.plan && acceleration.plan->contract)
    options.max_kl = acceleration.plan->contract->max_kl;
  if (options.every > 0) check_audit(options, plan);
  return options;
}

std::string audit_text(const AuditedSteps& audit) {
  const AuditOptions& options = audit.options();
  std::string text;
  if (const AuditInterval kl = audit.prompt_kl(); kl.n_samples > 0)
    text = fmt::format("prompt: measured KL {} on {} of {} tokens{}\n", interval_text(kl),
                       kl.n_samples, audit.n_prompt(),
                       options.max_kl && kl.low > *options.max_kl ? ", above the contract" : "");
  if (audit.n_compared() == 0)
    return text + fmt::format("no KL measured: {} decode steps, --audit {}", audit.n_steps(),
                              options.every);
  text += audit.kl().n_samples > 0
              ? fmt::format("measured KL {}", interval_text(audit.kl()))
              : fmt::format("measured KL {} before delta was last changed, none since",
                            interval_text(audit.records().back().kl));
  if (options.mode == AuditMode::kStep) text += " of single steps";
  text += fmt::format(" on {} of {} tokens", audit.n_compared(), audit.n_steps());
  if (options.max_kl) text += fmt::format(", contract {:.4g}", *options.max_kl);
  if (audit.delta_factor() < 1) text += fmt::format(", delta x {:.4g}", audit.delta_factor());
  return text;
}

std::string tightened_text(const AuditRecord& record, double max_kl) {
  return fmt::format("at token {} the KL is {}, the contract {:.4g}: {}", record.position,
                     interval_text(record.kl), max_kl,
                     record.delta_factor > 0
                         ? fmt::format("delta x {:.4g} from here on", record.delta_factor)
                         : std::string("everything is read from here on"));
}

}  // namespace sluice::impl::cli
