// Files for tests: a folder that removes itself, and writers of safetensors and GGUF that can
// also write what no honest program would.

#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/error.h"

namespace sluice::impl::test {

class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "sluice-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, std::string_view content) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream stream(file, std::ios::binary);
    stream.write(content.data(), static_cast<std::streamsize>(content.size()));
    if (!stream) throw std::runtime_error("cannot write " + file.string());
    return file;
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// The bytes of numbers, little endian as every file format here.
template <typename T>
std::string pack(T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}
template <typename T>
std::string pack_all(const std::vector<T>& values) {
  std::string bytes;
  for (const T value : values) bytes += pack<T>(value);
  return bytes;
}

// Runs `action`, which must throw Error; checks that the message is one line that holds every
// fragment, and returns it. Without an Error the test fails.
template <typename F>
std::string expect_error(F&& action, const std::vector<std::string>& fragments) {
  try {
    action();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), message.npos) << message;
    EXPECT_EQ(error.hint().find('\n'), std::string::npos) << error.hint();
    EXPECT_FALSE(error.hint().empty()) << "no hint with: " << message;
    for (const std::string& fragment : fragments)
      EXPECT_NE(message.find(fragment), message.npos)
          << "expected: " << fragment << "\nmessage:  " << message;
    return message;
  }
  ADD_FAILURE() << "no Error; expected one with: " << (fragments.empty() ? "" : fragments.front());
  return {};
}

// ---- safetensors ----

struct SafetensorsTensor {
  std::string name;
  std::string dtype;  // "F32"
  std::vector<int64_t> shape;
  std::string data;
};

inline std::string safetensors_from_header(const std::string& header, const std::string& data) {
  return pack<uint64_t>(header.size()) + header + data;
}

inline std::string safetensors_bytes(const std::vector<SafetensorsTensor>& tensors) {
  std::string header = "{";
  std::string data;
  for (const SafetensorsTensor& tensor : tensors) {
    if (header.size() > 1) header += ",";
    header += "\"" + tensor.name + "\":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[";
    for (size_t i = 0; i < tensor.shape.size(); ++i)
      header += (i ? "," : "") + std::to_string(tensor.shape[i]);
    header += "],\"data_offsets\":[" + std::to_string(data.size()) + ",";
    data += tensor.data;
    header += std::to_string(data.size()) + "]}";
  }
  return safetensors_from_header(header + "}", data);
}

inline SafetensorsTensor f32_tensor(std::string name, std::vector<int64_t> shape,
                                    const std::vector<float>& values) {
  return {std::move(name), "F32", std::move(shape), pack_all(values)};
}

// ---- GGUF ----

// Value and tensor types as the file numbers them.
enum GgufValueId : uint32_t {
  kGgufU8 = 0,
  kGgufI8 = 1,
  kGgufU16 = 2,
  kGgufI16 = 3,
  kGgufU32 = 4,
  kGgufI32 = 5,
  kGgufF32 = 6,
  kGgufBool = 7,
  kGgufString = 8,
  kGgufArray = 9,
  kGgufU64 = 10,
  kGgufI64 = 11,
  kGgufF64 = 12,
};
enum GgufTensorId : uint32_t {
  kGgmlF32 = 0,
  kGgmlF16 = 1,
  kGgmlQ4_0 = 2,
  kGgmlQ4_1 = 3,
  kGgmlQ5_0 = 6,
  kGgmlQ5_1 = 7,
  kGgmlQ8_0 = 8,
  kGgmlQ2_K = 10,
  kGgmlQ4_K = 12,
  kGgmlQ5_K = 13,
  kGgmlQ6_K = 14,
  kGgmlBF16 = 30,
};

struct GgufTensor {
  std::string name;
  std::vector<uint64_t> extents;  // the file's order: fastest axis first
  uint32_t type = kGgmlF32;
  std::string data;
  std::optional<uint64_t> offset;  // instead of the right one
};

inline std::string gguf_string(std::string_view text) {
  return pack<uint64_t>(text.size()) + std::string(text);
}

class GgufWriter {
 public:
  std::string magic = "GGUF";
  uint32_t version = 3;
  uint64_t alignment = 32;            // write general.alignment yourself when it is another
  std::optional<uint64_t> n_tensors;  // instead of the right counts
  std::optional<uint64_t> n_pairs;

  GgufWriter& raw(std::string_view key, uint32_t type, const std::string& value) {
    pairs_ += gguf_string(key) + pack(type) + value;
    ++pair_count_;
    return *this;
  }
  GgufWriter& u32(std::string_view key, uint32_t value) { return raw(key, kGgufU32, pack(value)); }
  GgufWriter& f32(std::string_view key, float value) { return raw(key, kGgufF32, pack(value)); }
  GgufWriter& boolean(std::string_view key, bool value) {
    return raw(key, kGgufBool, pack<uint8_t>(value));
  }
  GgufWriter& string(std::string_view key, std::string_view value) {
    return raw(key, kGgufString, gguf_string(value));
  }
  GgufWriter& strings(std::string_view key, const std::vector<std::string>& values) {
    std::string bytes;
    for (const std::string& value : values) bytes += gguf_string(value);
    return array(key, kGgufString, values.size(), bytes);
  }
  GgufWriter& i32s(std::string_view key, const std::vector<int32_t>& values) {
    return array(key, kGgufI32, values.size(), pack_all(values));
  }
  GgufWriter& f32s(std::string_view key, const std::vector<float>& values) {
    return array(key, kGgufF32, values.size(), pack_all(values));
  }
  GgufWriter& array(std::string_view key, uint32_t type, uint64_t count,
                    const std::string& values) {
    return raw(key, kGgufArray, pack(type) + pack(count) + values);
  }
  GgufWriter& tensor(GgufTensor tensor) {
    tensors_.push_back(std::move(tensor));
    return *this;
  }

  std::string bytes() const {
    std::string out = magic + pack(version) + pack<uint64_t>(n_tensors.value_or(tensors_.size())) +
                      pack<uint64_t>(n_pairs.value_or(pair_count_)) + pairs_;
    std::string data;
    for (const GgufTensor& tensor : tensors_) {
      pad(data);
      out += gguf_string(tensor.name) + pack(static_cast<uint32_t>(tensor.extents.size())) +
             pack_all(tensor.extents) + pack(tensor.type) +
             pack<uint64_t>(tensor.offset.value_or(data.size()));
      data += tensor.data;
    }
    pad(out);
    return out + data;
  }

 private:
  void pad(std::string& text) const {
    while (text.size() % alignment != 0) text += '\0';
  }

  std::string pairs_;
  uint64_t pair_count_ = 0;
  std::vector<GgufTensor> tensors_;
};

}  // namespace sluice::impl::test
