// Values as bytes, to go from rank to rank: numbers and plain structs as they lie in memory,
// vectors, strings and optionals behind their size, other types by a member
//
//   template <typename Archive>
//   void transfer(Archive& archive) { archive(first_, second_); }
//
// which serves both directions. All ranks run one program on machines of one kind.

#pragma once

#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "core/error.h"

namespace sluice::impl {

template <typename T, typename Archive>
concept Transfers = requires(T& value, Archive& archive) {
  value.transfer(archive);
};

class Packer {
 public:
  template <typename... T>
  void operator()(T&... values) {
    (put(values), ...);
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void append(const void* from, size_t n) {
    const auto* first = static_cast<const std::byte*>(from);
    bytes_.insert(bytes_.end(), first, first + n);
  }
  template <typename T>
  void put(T& value) {
    if constexpr (Transfers<T, Packer>) {
      value.transfer(*this);
    } else {
      static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>);
      append(&value, sizeof value);
    }
  }
  template <typename T>
  void put(std::vector<T>& values) {
    put_size(values.size());
    if constexpr (Transfers<T, Packer> || !std::is_trivially_copyable_v<T>) {
      for (T& value : values) put(value);
    } else if (!values.empty()) {
      append(values.data(), values.size() * sizeof(T));
    }
  }
  void put(std::string& text) {
    put_size(text.size());
    append(text.data(), text.size());
  }
  template <typename T>
  void put(std::optional<T>& value) {
    put_size(value ? 1 : 0);
    if (value) put(*value);
  }
  void put_size(uint64_t size) { append(&size, sizeof size); }

  std::vector<std::byte> bytes_;
};

class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename... T>
  void operator()(T&... values) {
    (get(values), ...);
  }
  bool at_end() const { return rest_.empty(); }

 private:
  void copy(void* to, size_t n) {
    SLUICE_CHECK(n <= rest_.size());
    if (n > 0) std::memcpy(to, rest_.data(), n);
    rest_ = rest_.subspan(n);
  }
  template <typename T>
  void get(T& value) {
    if constexpr (Transfers<T, Unpacker>) {
      value.transfer(*this);
    } else {
      static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>);
      copy(&value, sizeof value);
    }
  }
  template <typename T>
  void get(std::vector<T>& values) {
    values.resize(get_size());
    if constexpr (Transfers<T, Unpacker> || !std::is_trivially_copyable_v<T>) {
      for (T& value : values) get(value);
    } else {
      copy(values.data(), values.size() * sizeof(T));
    }
  }
  void get(std::string& text) {
    text.resize(get_size());
    copy(text.data(), text.size());
  }
  template <typename T>
  void get(std::optional<T>& value) {
    value.reset();
    if (get_size() > 0) get(value.emplace());
  }
  size_t get_size() {
    uint64_t size = 0;
    copy(&size, sizeof size);
    SLUICE_CHECK(size <= rest_.size() || size == 0);
    return size;
  }

  std::span<const std::byte> rest_;
};

template <typename T>
std::vector<std::byte> packed(T& value) {
  Packer pack;
  pack(value);
  return pack.take();
}

template <typename T>
T unpacked(std::span<const std::byte> bytes) {
  T value{};
  Unpacker unpack(bytes);
  unpack(value);
  SLUICE_CHECK(unpack.at_end());
  return value;
}

}  // namespace sluice::impl
