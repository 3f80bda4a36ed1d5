// Plain values as bytes, for messages between processes of one program on machines alike.

#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "core/error.h"

namespace sluice::impl {

using Bytes = std::vector<std::byte>;

template <typename T>
void pack(std::span<const T> values, Bytes& out) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto bytes = std::as_bytes(values);
  out.insert(out.end(), bytes.begin(), bytes.end());
}
template <typename T>
void pack(const T& value, Bytes& out) {
  pack(std::span<const T>(&value, 1), out);
}

// Takes values from the front of `in`.
template <typename T>
void unpack(std::span<const std::byte>& in, std::span<T> values) {
  static_assert(std::is_trivially_copyable_v<T>);
  SLUICE_CHECK(in.size() >= values.size_bytes());
  if (!values.empty()) std::memcpy(values.data(), in.data(), values.size_bytes());
  in = in.subspan(values.size_bytes());
}
template <typename T>
T unpack(std::span<const std::byte>& in) {
  T value;
  unpack(in, std::span<T>(&value, 1));
  return value;
}

}  // namespace sluice::impl
