// --audit: the loss of a run's decode steps, measured while it runs.

#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/options/plan_option.h"
#include "eval/audit/audited_steps.h"

namespace sluice::impl::cli {

struct AuditFlags {
  int64_t every = 0;
  std::string mode = "replay";
};

void add_audit_options(CLI::App& command, AuditFlags& flags);

// Throws CLI::ValidationError for an audit of a run that is exact.
void check_audited(const AuditFlags& flags, bool accelerated);
// What the flags and the contract of a plan, where there is one, ask for; `every` is 0 without
// --audit. Throws Error for a plan that cannot be audited so.
AuditOptions audit_options(const AuditFlags& flags, const Acceleration& acceleration,
                           const AttentionPlan& plan);

// "0.0043 (0.0034 to 0.0058)".
std::string interval_text(const AuditInterval& kl);
// One line each: what an audit measured, and what it changed.
std::string audit_text(const AuditedSteps& audit);
std::string tightened_text(const AuditRecord& record, double max_kl);

}  // namespace sluice::impl::cli
