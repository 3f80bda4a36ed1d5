// The `audit` of a run in results.json: docs/results.md.

#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>

#include "eval/audit/audited_steps.h"

namespace sluice::impl {

// Of some records, which are not none: the last of them, how it was measured, and all `samples`.
nlohmann::json describe_records(std::span<const AuditRecord> records, const AuditOptions& options);
nlohmann::json describe_audit(const AuditedSteps& audit);

}  // namespace sluice::impl
