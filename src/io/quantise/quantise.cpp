#include "io/quantise/quantise.h"

#include <algorithm>

#include "core/error.h"
#include "io/quantise/blocks.h"

namespace sluice::impl {
namespace {

using Write = void (*)(const float*, std::byte*);

Write writer(DType dtype) {
  switch (dtype) {
    case DType::kQ8_0:
      return quantise::write_q8_0;
    case DType::kQ4_0:
      return quantise::write_q4_0;
    case DType::kQ4_1:
      return quantise::write_q4_1;
    case DType::kQ5_0:
      return quantise::write_q5_0;
    case DType::kQ5_1:
      return quantise::write_q5_1;
    case DType::kQ4_K:
      return quantise::write_q4_k;
    case DType::kQ5_K:
      return quantise::write_q5_k;
    case DType::kQ6_K:
      return quantise::write_q6_k;
    default:
      return nullptr;
  }
}

// Scales and minima are at most this large, so that each fits a half (65,504).
constexpr float kLargest = 32768.0f;

}  // namespace

void quantise_blocks(DType dtype, std::span<const float> x, std::byte* out) {
  const Write write = writer(dtype);
  const BlockSize block = block_size(dtype);
  SLUICE_CHECK(write != nullptr);
  SLUICE_CHECK(static_cast<int64_t>(x.size()) % block.elements == 0);
  if (!std::all_of(x.begin(), x.end(), [](float v) { return std::abs(v) <= kLargest; }))
    throw Error(
        "a weight is not finite, or too large for blocks of " + std::string(dtype_name(dtype)),
        "load the weights as f32 or bf16");
  for (size_t at = 0; at < x.size(); at += static_cast<size_t>(block.elements), out += block.bytes)
    write(x.data() + at, out);
}

}  // namespace sluice::impl
