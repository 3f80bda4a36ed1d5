#include "model/rotary.h"

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
  std::vector<float> frequencies;
  for (int64_t i = 0; i < rotary.dim / 2; ++i) {
    double frequency = std::pow(base, -2.0 * static_cast<double>(i) / dim);
    if (scaling.kind == RotaryScaling::Kind::kLinear) frequency /= scaling.factor;
    if (scaling.kind == RotaryScaling::Kind::kLlama3)
      frequency = llama3_frequency(frequency, scaling);
    // Models are trained with frequencies rounded to float32.
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

RotaryTables make_rotary_tables(const RotarySpec& rotary, int64_t context, int64_t n_positions,
                                Backend& backend) {
  const std::vector<float> frequencies = rotary_frequencies(rotary, context);
  const auto half = static_cast<int64_t>(frequencies.size());
  const Buffer cosine = host_buffer(DType::kF32, {n_positions, half});
  const Buffer sine = host_buffer(DType::kF32, {n_positions, half});
  for (int64_t position = 0; position < n_positions; ++position) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * frequencies[static_cast<size_t>(i)];
      cosine.view().row<float>(position)[i] = static_cast<float>(std::cos(angle));
      sine.view().row<float>(position)[i] = static_cast<float>(std::sin(angle));
    }
  }
  RotaryTables tables{backend.allocate(DType::kF32, {n_positions, half}),
                      backend.allocate(DType::kF32, {n_positions, half})};
  backend.upload(cosine.view(), tables.cosine.view());
  backend.upload(sine.view(), tables.sine.view());
  return tables;
}

}  // namespace sluice::impl
