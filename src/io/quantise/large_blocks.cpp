// Blocks of 256 values in sub-blocks with integer scales, and integer minima in some types.

#include <algorithm>
#include <array>
#include <span>

#include "io/quantise/blocks.h"

namespace sluice::impl::quantise {
namespace {

constexpr int kBlock = 256;
// Scales that a sub-block tries, in steps of 2.5% about the one its extremes ask for.
constexpr int kSteps = 3, kTries = 2 * kSteps + 1;

float tried(int i) { return 1.0f + 0.025f * static_cast<float>(i - kSteps); }

// x as scale q - minimum with q in [0, largest].
struct Fit {
  float scale = 0, minimum = 0;
  float error = 0;
};

float error_of(std::span<const float> x, float scale, float minimum, int largest) {
  float error = 0;
  for (const float value : x) {
    const int q = steps(value + minimum, scale, 0, largest);
    const float off = scale * static_cast<float>(q) - minimum - value;
    error += off * off;
  }
  return error;
}

// The scale and minimum of least squares for the steps that `from` gives. A minimum is not
// negative: the format subtracts it.
Fit refit(std::span<const float> x, const Fit& from, int largest) {
  double n = 0, sum_q = 0, sum_qq = 0, sum_x = 0, sum_qx = 0;
  for (const float value : x) {
    const double q = steps(value + from.minimum, from.scale, 0, largest);
    n += 1;
    sum_q += q;
    sum_qq += q * q;
    sum_x += value;
    sum_qx += q * value;
  }
  const double determinant = n * sum_qq - sum_q * sum_q;
  if (determinant <= 0) return from;
  Fit fit;
  fit.scale = static_cast<float>((n * sum_qx - sum_q * sum_x) / determinant);
  fit.minimum = static_cast<float>((sum_q * sum_qx - sum_qq * sum_x) / determinant);
  if (fit.minimum < 0) {
    fit.minimum = 0;
    fit.scale = sum_qq > 0 ? static_cast<float>(sum_qx / sum_qq) : 0.0f;
  }
  if (fit.scale <= 0) return from;
  fit.error = error_of(x, fit.scale, fit.minimum, largest);
  return fit;
}

Fit fit_with_minimum(std::span<const float> x, int largest) {
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  Fit best;
  best.minimum = std::max(0.0f, -*low);
  best.scale = (std::max(0.0f, *high) + best.minimum) / static_cast<float>(largest);
  best.error = error_of(x, best.scale, best.minimum, largest);
  const Fit first = best;
  for (int i = 0; i < kTries; ++i) {
    Fit fit = first;
    fit.scale *= tried(i);
    fit = refit(x, fit, largest);
    if (fit.error < best.error && fit.scale > 0) best = fit;
  }
  return best;
}

// x as scale q with q in [-32, 31]; the scale may be negative.
float fit_signed(std::span<const float> x) {
  float extreme = 0;
  for (const float value : x)
    if (std::abs(value) > std::abs(extreme)) extreme = value;
  if (extreme == 0) return 0;
  float best = 0, least = INFINITY;
  for (int i = 0; i < kTries; ++i) {
    const float scale = extreme / -32.0f * tried(i);
    double sum_qq = 0, sum_qx = 0;
    for (const float value : x) {
      const double q = steps(value, scale, -32, 31);
      sum_qq += q * q;
      sum_qx += q * value;
    }
    const float refitted = sum_qq > 0 ? static_cast<float>(sum_qx / sum_qq) : scale;
    float error = 0;
    for (const float value : x) {
      const float off = refitted * static_cast<float>(steps(value, refitted, -32, 31)) - value;
      error += off * off;
    }
    if (error < least) {
      least = error;
      best = refitted;
    }
  }
  return best;
}

// The layout that io/gguf_blocks.cpp reads: sub-blocks 4 to 7 are cut into 4 and 2 bits.
void put_scales(const std::array<int, 8>& scales, const std::array<int, 8>& minima,
                std::byte* out) {
  for (size_t i = 0; i < 4; ++i) {
    out[i] = static_cast<std::byte>(scales[i] | (scales[i + 4] >> 4) << 6);
    out[i + 4] = static_cast<std::byte>(minima[i] | (minima[i + 4] >> 4) << 6);
    out[i + 8] = static_cast<std::byte>((scales[i + 4] & 0xf) | (minima[i + 4] & 0xf) << 4);
  }
}

// Steps of 256 values, and the head of the block.
std::array<int, kBlock> steps_with_minima(const float* x, int largest, std::byte* block) {
  std::array<Fit, 8> fits;
  float scale = 0, minimum = 0;
  for (size_t s = 0; s < 8; ++s) {
    fits[s] = fit_with_minimum({x + 32 * s, 32}, largest);
    scale = std::max(scale, fits[s].scale);
    minimum = std::max(minimum, fits[s].minimum);
  }
  const Half d(scale / 63.0f), e(minimum / 63.0f);
  d.put(block);
  e.put(block + 2);
  std::array<int, 8> scales, minima;
  std::array<int, kBlock> q;
  for (size_t s = 0; s < 8; ++s) {
    scales[s] = steps(fits[s].scale, d.value, 0, 63);
    minima[s] = steps(fits[s].minimum, e.value, 0, 63);
    const float step = d.value * static_cast<float>(scales[s]);
    const float below = e.value * static_cast<float>(minima[s]);
    for (size_t i = 32 * s; i < 32 * (s + 1); ++i) q[i] = steps(x[i] + below, step, 0, largest);
  }
  put_scales(scales, minima, block + 4);
  return q;
}

// Sub-blocks 2g and 2g + 1 in the low and high nibbles of 32 bytes.
void put_nibbles(const std::array<int, kBlock>& q, std::byte* out) {
  for (size_t pair = 0; pair < 4; ++pair)
    for (size_t i = 0; i < 32; ++i)
      out[pair * 32 + i] =
          static_cast<std::byte>((q[pair * 64 + i] & 0xf) | (q[pair * 64 + 32 + i] & 0xf) << 4);
}

}  // namespace

void write_q4_k(const float* x, std::byte* block) {
  put_nibbles(steps_with_minima(x, 15, block), block + 16);
}

void write_q5_k(const float* x, std::byte* block) {
  const auto q = steps_with_minima(x, 31, block);
  for (size_t i = 0; i < 32; ++i) {
    int bits = 0;
    for (size_t s = 0; s < 8; ++s) bits |= (q[s * 32 + i] >> 4 & 1) << s;
    block[16 + i] = static_cast<std::byte>(bits);
  }
  put_nibbles(q, block + 48);
}

void write_q6_k(const float* x, std::byte* block) {
  std::array<float, 16> fits;
  float extreme = 0;
  for (size_t s = 0; s < 16; ++s) {
    fits[s] = fit_signed({x + 16 * s, 16});
    if (std::abs(fits[s]) > std::abs(extreme)) extreme = fits[s];
  }
  const Half d(extreme / -128.0f);
  d.put(block + 208);
  std::memset(block, 0, 192);
  for (size_t i = 0; i < kBlock; ++i) {
    const int scale = steps(fits[i / 16], d.value, -128, 127);
    block[192 + i / 16] = static_cast<std::byte>(scale);
    const int q = steps(x[i], d.value * static_cast<float>(scale), -32, 31) + 32;
    const size_t half = i / 128, quarter = i % 128 / 32, k = i % 32;
    block[half * 64 + quarter % 2 * 32 + k] |=
        static_cast<std::byte>((q & 0xf) << (quarter < 2 ? 0 : 4));
    block[128 + half * 32 + k] |= static_cast<std::byte>((q >> 4) << (2 * quarter));
  }
}

}  // namespace sluice::impl::quantise
