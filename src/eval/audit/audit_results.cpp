#include "eval/audit/audit_results.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "eval/results.h"

namespace sluice::impl {
namespace {

// Null where there is no such number.
nlohmann::json describe_interval(const AuditInterval& kl) {
  return {{"n_samples", kl.n_samples},
          {"kl", kl.n_samples == 0 ? nlohmann::json() : nlohmann::json(kl.mean)},
          {"kl_low", kl.low},
          {"kl_high", std::isinf(kl.high) ? nlohmann::json() : nlohmann::json(kl.high)}};
}

nlohmann::json describe_record(const AuditRecord& record) {
  nlohmann::json out = describe_interval(record.kl);
  out["position"] = record.position;
  out["delta_factor"] = record.delta_factor;
  out["tightened"] = record.tightened;
  return out;
}

void put_samples(std::span<const AuditRecord> records, const AuditOptions& options,
                 nlohmann::json& out) {
  out["mode"] = audit_mode_name(options.mode);
  out["every"] = options.every;
  out["max_kl"] = or_null(options.max_kl);
  out["samples"] = nlohmann::json::array();
  for (const AuditRecord& record : records) out["samples"].push_back(describe_record(record));
}

}  // namespace

nlohmann::json describe_records(std::span<const AuditRecord> records, const AuditOptions& options) {
  SLUICE_CHECK(!records.empty());
  nlohmann::json out = describe_record(records.back());
  put_samples(records, options, out);
  return out;
}

nlohmann::json describe_audit(const AuditedSteps& audit) {
  const AuditOptions& options = audit.options();
  nlohmann::json out = describe_interval(audit.kl());
  put_samples(audit.records(), options, out);
  if (audit.prompt_kl().n_samples > 0) {
    out["prompt"] = describe_interval(audit.prompt_kl());
    out["prompt"]["n_tokens"] = audit.n_prompt();
  }
  out["seed"] = options.seed;
  out["n_steps"] = audit.n_steps();
  out["n_compared"] = audit.n_compared();
  out["delta_factor"] = audit.delta_factor();
  return out;
}

}  // namespace sluice::impl
