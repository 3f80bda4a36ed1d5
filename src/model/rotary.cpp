#include "model/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sluice::impl {
namespace {

// Llama 3: long wavelengths are stretched by the factor, short ones kept, the band between
// blended.
double llama3_frequency(double frequency, const RotaryScaling& scaling) {
  const double length = static_cast<double>(scaling.original_positions);
  const double rotations = length * frequency / (2 * std::numbers::pi);
  if (rotations < scaling.low_frequency_factor) return frequency / scaling.factor;
  if (rotations > scaling.high_frequency_factor) return frequency;
  const double smooth = (rotations - scaling.low_frequency_factor) /
                        (scaling.high_frequency_factor - scaling.low_frequency_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

// YaRN: the index, of dim / 2, at which a frequency has so many rotations in the original length.
double yarn_index(const RotarySpec& rotary, double rotations) {
  const double length = static_cast<double>(rotary.scaling.original_positions);
  return static_cast<double>(rotary.dim) * std::log(length / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(rotary.base));
}

// Of every frequency, how much of it is divided by the factor: 0 to 1.
std::vector<double> yarn_ramp(const RotarySpec& rotary) {
  double low = yarn_index(rotary, rotary.scaling.beta_fast);
  double high = yarn_index(rotary, rotary.scaling.beta_slow);
  if (rotary.scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rotary.dim - 1));
  if (low == high) high += 0.001;
  std::vector<double> ramp;
  for (int64_t i = 0; i < rotary.dim / 2; ++i)
    ramp.push_back(std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0));
  return ramp;
}

}  // namespace

std::vector<float> rotary_frequencies(const RotarySpec& rotary, int64_t context) {
  if (!rotary.frequencies.empty()) return rotary.frequencies;
  const auto dim = static_cast<double>(rotary.dim);
  const RotaryScaling& scaling = rotary.scaling;
  double base = rotary.base;
  if (scaling.kind == RotaryScaling::Kind::kDynamic && context > scaling.original_positions &&
      rotary.dim > 2) {
    const double stretch =
        static_cast<double>(context) / static_cast<double>(scaling.original_positions);
    base *= std::pow(scaling.factor * stretch - (scaling.factor - 1), dim / (dim - 2));
  }
  std::vector<double> ramp;
  if (scaling.kind == RotaryScaling::Kind::kYarn) ramp = yarn_ramp(rotary);
  const std::vector<double>& divisors =
      context > scaling.original_positions ? scaling.long_factors : scaling.short_factors;
  std::vector<float> frequencies;
  for (int64_t i = 0; i < rotary.dim / 2; ++i) {
    const auto at = static_cast<size_t>(i);
    double frequency = std::pow(base, -2.0 * static_cast<double>(i) / dim);
    if (scaling.kind == RotaryScaling::Kind::kLinear) frequency /= scaling.factor;
    if (scaling.kind == RotaryScaling::Kind::kLlama3)
      frequency = llama3_frequency(frequency, scaling);
    if (!ramp.empty()) frequency *= 1 - ramp[at] + ramp[at] / scaling.factor;
    if (!divisors.empty()) frequency /= divisors[at];
    // Models are trained with frequencies rounded to float32.
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

RotaryTables make_rotary_tables(const RotarySpec& rotary, int64_t context, int64_t n_positions,
                                Backend& backend) {
  const std::vector<float> frequencies = rotary_frequencies(rotary, context);
  const auto half = static_cast<int64_t>(frequencies.size());
  const double factor = rotary.scaling.attention_factor;
  const Buffer cosine = host_buffer(DType::kF32, {n_positions, half});
  const Buffer sine = host_buffer(DType::kF32, {n_positions, half});
  for (int64_t position = 0; position < n_positions; ++position) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * frequencies[static_cast<size_t>(i)];
      cosine.view().row<float>(position)[i] = static_cast<float>(factor * std::cos(angle));
      sine.view().row<float>(position)[i] = static_cast<float>(factor * std::sin(angle));
    }
  }
  RotaryTables tables{backend.allocate(DType::kF32, {n_positions, half}),
                      backend.allocate(DType::kF32, {n_positions, half})};
  backend.upload(cosine.view(), tables.cosine.view());
  backend.upload(sine.view(), tables.sine.view());
  return tables;
}

}  // namespace sluice::impl
