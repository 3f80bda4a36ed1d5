// What tune measured, in a file, so that an interrupted run goes on where it was and another
// contract need not measure again.

#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ranks/communicator.h"

namespace sluice::impl {

class Measurements {
 public:
  // key: all that KLs depend on beyond rounding (model, text, lengths …; not the machine). A file
  // of another key or version is begun anew; Error for one that is something else. Without a path
  // nothing is kept.
  Measurements(std::filesystem::path path, const nlohmann::json& key);

  // Sums of KL by window; those known are the first ones.
  const std::vector<double>& kl(const std::string& change) const;
  void add_kl(const std::string& change, double sum) { kl_[change].push_back(sum); }
  // Tables of times by where and how they were taken, as their maker describes them; null when
  // there are none.
  const nlohmann::json& times() const { return times_; }
  void set_times(nlohmann::json times) { times_ = std::move(times); }

  // What rank 0 knows, on every rank. Others have no file.
  void share(Communicator& ranks);

  bool resumed() const { return resumed_; }
  void save() const;

 private:
  std::filesystem::path path_;
  nlohmann::json key_, times_;
  std::map<std::string, std::vector<double>> kl_;
  bool resumed_ = false;
};

}  // namespace sluice::impl
