// What a case on a CUDA device is given, and where its figures go.

#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/cuda/runtime/device.h"
#include "io/config.h"
#include "stopwatch.h"
#include "table.h"

namespace sluice::impl::bench {

constexpr int64_t kMostTokens = int64_t{1} << 20, kMostWidth = int64_t{1} << 20;

class CudaCase {
 public:
  CudaCase(const nlohmann::json& description, int repeat, nlohmann::json& results);

  const std::string& name() const { return name_; }
  const ConfigReader& keys() const { return keys_; }
  // A key that holds a list of objects, one at least; or one object.
  std::vector<ConfigReader> objects(const char* key) const;
  ConfigReader object(const char* key) const;

  const std::shared_ptr<cuda::Context>& context() const { return context_; }
  int rounds(int usual) const { return repeat_ > 0 ? repeat_ : usual; }
  Table& table() { return table_; }

  // One of results["cases"]: the case's name and `what`, the samples, and `more`.
  void record(const std::string& what, const std::string& mode, const Timing& timing,
              nlohmann::json more);

 private:
  std::string name_;
  const nlohmann::json& description_;
  ConfigReader keys_;
  int repeat_;
  nlohmann::json& results_;
  std::shared_ptr<cuda::Context> context_;
  Table table_;
};

// Lists that must be there and not empty.
std::vector<int64_t> integers(const ConfigReader& keys, const char* key, int64_t min, int64_t max);
std::vector<double> shares(const ConfigReader& keys, const char* key);  // above 0, at most 1

// The kinds: each in the file of its name, whose opening lists its keys.
void run_attention(CudaCase& c);
void run_blocks(CudaCase& c);
void run_dense_attention(CudaCase& c);
void run_model(CudaCase& c);
void run_products(CudaCase& c);
void run_refine(CudaCase& c);
void run_select(CudaCase& c);
// The modes of kind "linear": gsi.cpp, graded.cpp, linear_parts.cpp.
void run_gsi(CudaCase& c);
void run_graded(CudaCase& c);
void run_linear_parts(CudaCase& c);

}  // namespace sluice::impl::bench
