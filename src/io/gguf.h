// GGUF v2 and v3: metadata and tensors in one file.

#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "io/json/parse.h"
#include "io/weight_store.h"

namespace sluice::impl {

// Integers of every width become int64 (a uint64 beyond it is refused), floats become double.
using GgufValue = std::variant<int64_t, double, bool, std::string, std::vector<int64_t>,
                               std::vector<double>, std::vector<bool>, std::vector<std::string>>;

struct GgufFile {
  std::filesystem::path path;
  std::map<std::string, GgufValue, std::less<>> metadata;
  WeightStore weights;                 // shapes slowest axis first: the file's order reversed
  size_t memory_left = memory_for(0);  // what may be made of the metadata, in bytes

  const GgufValue* find(std::string_view key) const;
  // Typed access. require_* throws Error naming file and key when absent or of another type;
  // find_* returns nothing when absent and throws when of another type.
  int64_t require_int(std::string_view key) const;
  double require_float(std::string_view key) const;  // finite; an integer is accepted
  const std::string& require_string(std::string_view key) const;
  std::optional<int64_t> find_int(std::string_view key) const;
  std::optional<double> find_float(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  const std::vector<std::string>* find_strings(std::string_view key) const;
  const std::vector<int64_t>* find_ints(std::string_view key) const;
  const std::vector<double>* find_floats(std::string_view key) const;
};

// A tensor of a type that is not in DType, a split model and GGUF v1 are refused.
GgufFile open_gguf(const std::filesystem::path& path);

// The same from memory that outlives the result; `path` is used in errors only.
GgufFile parse_gguf(std::span<const std::byte> bytes, const std::filesystem::path& path);

}  // namespace sluice::impl
