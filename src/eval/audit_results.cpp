#include "eval/audit_results.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "eval/results.h"

namespace sluice {
namespace {

// Null where there is no such number.
nlohmann::json describe_interval(const AuditInterval& kl) {
  return {{"n_samples", kl.n_samples},
          {"kl", kl.n_samples == 0 ? nlohmann::json() : nlohmann::json(kl.mean)},
          {"kl_low", kl.low},
          {"kl_high", std::isinf(kl.high) ? nlohmann::json() : nlohmann::json(kl.high)}};
}

nlohmann::json describe_record(const AuditRecord& record) {
  nlohmann::json json = describe_interval(record.kl);
  json["position"] = record.position;
  json["delta_factor"] = record.delta_factor;
  json["tightened"] = record.tightened;
  return json;
}

void put_samples(std::span<const AuditRecord> records, const AuditOptions& options,
                 nlohmann::json& json) {
  json["way"] = way_name(options.way);
  json["every"] = options.every;
  json["max_kl"] = or_null(options.max_kl);
  json["samples"] = nlohmann::json::array();
  for (const AuditRecord& record : records) json["samples"].push_back(describe_record(record));
}

}  // namespace

nlohmann::json describe_records(std::span<const AuditRecord> records, const AuditOptions& options) {
  SLUICE_CHECK(!records.empty());
  nlohmann::json json = describe_record(records.back());
  put_samples(records, options, json);
  return json;
}

nlohmann::json describe_audit(const AuditedSteps& audit) {
  const AuditOptions& options = audit.options();
  nlohmann::json json = describe_interval(audit.kl());
  put_samples(audit.records(), options, json);
  json["seed"] = options.seed;
  json["n_steps"] = audit.n_steps();
  json["n_compared"] = audit.n_compared();
  json["delta_factor"] = audit.delta_factor();
  return json;
}

}  // namespace sluice
