#include "cuda/case.h"

#include <fmt/format.h>

namespace sluice::impl::bench {

CudaCase::CudaCase(const nlohmann::json& description, int repeat, nlohmann::json& results)
    : name_(description.at("name").get<std::string>()),
      description_(description),
      keys_(description, name_),
      repeat_(repeat),
      results_(results),
      context_(std::make_shared<cuda::Context>(0)),
      table_(name_, results) {
  results["machine"]["gpu"] = context_->description();
}

std::vector<ConfigReader> CudaCase::objects(const char* key) const {
  if (!keys_.has(key) || !description_[key].is_array() || description_[key].empty())
    keys_.refuse(key, "a list of objects");
  std::vector<ConfigReader> list;
  for (const auto& entry : description_[key]) {
    if (!entry.is_object()) keys_.refuse(key, "a list of objects");
    list.emplace_back(entry, fmt::format("{}: {}[{}]", name_, key, list.size()));
  }
  return list;
}

ConfigReader CudaCase::object(const char* key) const {
  const std::optional<ConfigReader> found = keys_.object(key);
  if (!found) keys_.refuse(key, "an object");
  return *found;
}

void CudaCase::record(const std::string& what, const std::string& mode, const Timing& timing,
                      nlohmann::json more) {
  more.update({{"name", name_ + " " + what},
               {"device", "cuda"},
               {"dtype", "bf16"},
               {"mode", mode},
               {"samples_ms", timing.samples},
               {"median_ms", timing.median},
               {"spread", timing.spread}});
  results_["cases"].push_back(std::move(more));
}

std::vector<int64_t> integers(const ConfigReader& keys, const char* key, int64_t min, int64_t max) {
  std::vector<int64_t> list = keys.ints(key, min, max);
  if (list.empty()) keys.refuse(key, "a list of integers");
  return list;
}

std::vector<double> shares(const ConfigReader& keys, const char* key) {
  std::vector<double> list = keys.floats(key);
  if (list.empty()) keys.refuse(key, "a list of shares");
  for (const double share : list)
    if (!(share > 0 && share <= 1)) keys.refuse(key, "shares above 0 and at most 1");
  return list;
}

}  // namespace sluice::impl::bench
