// The `audit` of a run in results.json: docs/results.md.

#pragma once

#include <nlohmann/json_fwd.hpp>

#include "eval/audited_steps.h"

namespace sluice {

nlohmann::json describe_record(const AuditRecord& record);
nlohmann::json describe_audit(const AuditedSteps& audit);

}  // namespace sluice
