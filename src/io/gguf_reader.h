// A cursor over the bytes of a GGUF file that cannot leave them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

#include "io/gguf.h"

namespace sluice::impl {

class GgufReader {
 public:
  // `label` names the file in errors and must outlive the reader.
  GgufReader(std::span<const std::byte> bytes, const std::string& label)
      : bytes_(bytes), label_(label), memory_left_(memory_for(bytes.size())) {}

  size_t position() const { return position_; }
  size_t remaining() const { return bytes_.size() - position_; }

  // `what` says in errors what was being read.
  template <typename T>
  T read(const std::string& what) {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    T value;
    std::memcpy(&value, take(sizeof(T), what), sizeof(T));
    return value;
  }
  std::string read_string(const std::string& what);
  // Counts what is about to be made of the file; refused beyond memory_for() its size.
  void use_memory(size_t bytes, const std::string& what);
  size_t memory_left() const { return memory_left_; }
  // A value of metadata: its type, then the value or array. Arrays of arrays are refused.
  GgufValue read_value(const std::string& what);

 private:
  const std::byte* take(size_t count, const std::string& what);
  template <typename T>
  int64_t read_integer(const std::string& what);
  bool read_bool(const std::string& what);
  GgufValue read_scalar(uint32_t type, const std::string& what);
  GgufValue read_array(const std::string& what);
  template <typename T, typename F>
  std::vector<T> read_elements(size_t count, F&& read_one);

  std::span<const std::byte> bytes_;
  const std::string& label_;
  size_t position_ = 0;
  size_t array_elements_ = 0;  // of all arrays so far
  size_t memory_left_;         // bytes
};

}  // namespace sluice::impl
