// What a fuzzer does with one input, shared by the libFuzzer targets and mutation_test.
//
// Bad input may end in sluice::Error and in nothing else: another exception, a sanitizer report or
// a message of several lines is a finding. What is accepted is read to the last byte.

#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "io/config.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "io/weight_store.h"

namespace sluice::impl::fuzz {

inline void check_error(const Error& error) {
  const std::string_view message = error.what();
  if (message.empty() || message.size() > 2000 || message.find('\n') != message.npos ||
      error.hint().find('\n') != std::string::npos)
    throw std::logic_error("an Error is not one line: " + std::string(message));
}

template <typename F>
void expect_only_errors(F&& action) {
  try {
    action();
  } catch (const Error& error) {
    check_error(error);
  }
}

// Everything in pieces of whole blocks.
inline void read_all(const WeightStore& store) {
  std::vector<float> piece(1024);
  for (const auto& [name, tensor] : store.tensors()) {
    const int64_t count = tensor.shape.numel();
    for (int64_t begin = 0; begin < count; begin += 1024)
      expand(tensor, begin,
             std::span(piece).first(static_cast<size_t>(std::min<int64_t>(1024, count - begin))));
  }
}

inline void feed_safetensors(std::span<const std::byte> bytes) {
  expect_only_errors([&] {
    WeightStore store;
    parse_safetensors(bytes, "input", store);
    read_all(store);
    store.require("absent");
  });
}

inline void feed_gguf(std::span<const std::byte> bytes) {
  expect_only_errors([&] {
    const GgufFile file = parse_gguf(bytes, "input");
    read_all(file.weights);
    for (const auto& entry : file.metadata) {
      const std::string& key = entry.first;
      expect_only_errors([&] { file.require_int(key); });
      expect_only_errors([&] { file.require_float(key); });
      expect_only_errors([&] { file.require_string(key); });
      expect_only_errors([&] { file.find_strings(key); });
    }
    file.require_string("absent");
  });
}

inline void feed_config(std::span<const std::byte> bytes) {
  expect_only_errors([&] {
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const ConfigReader config = ConfigReader::parse(text, "input");
    for (const char* key : {"n_layer", "hidden_size", "a", "b", "rope_scaling", "architectures"}) {
      expect_only_errors([&] { config.require_int(key, 1, 1000); });
      expect_only_errors([&] { config.require_float(key, 0.0); });
      expect_only_errors([&] { config.require_string(key); });
      expect_only_errors([&] { config.bool_or(key, false); });
      expect_only_errors([&] { config.strings(key); });
      expect_only_errors([&] { config.ints(key, 0, ConfigReader::kMaxInt); });
      expect_only_errors([&] { config.floats(key); });
      expect_only_errors([&] {
        if (const auto inner = config.object(key)) inner->require_int("a", 0, 1);
      });
      expect_only_errors([&] { config.refuse(key, "something else"); });
    }
  });
}

}  // namespace sluice::impl::fuzz
