// Rotary frequencies against the formulas as Hugging Face's modeling_rope_utils states them.

#include "model/rotary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace sluice::impl {
namespace {

using Kind = RotaryScaling::Kind;

void expect_frequencies(const std::vector<float>& got, const std::vector<double>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  // Float64 throughout, rounded to f32 once: half a unit, and another for what pow may err by.
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], expected[i], expected[i] * 0x1p-23) << "frequency " << i;
}

// base^(-2i / dim) through logarithms.
std::vector<double> plain(double base, int64_t dim) {
  std::vector<double> out;
  for (int64_t i = 0; 2 * i < dim; ++i)
    out.push_back(
        std::exp(-std::log(base) * static_cast<double>(2 * i) / static_cast<double>(dim)));
  return out;
}

RotarySpec spec_of(int64_t dim, double base, RotaryScaling scaling = {}) {
  RotarySpec spec;
  spec.dim = dim;
  spec.base = base;
  spec.scaling = scaling;
  return spec;
}

TEST(RotaryFrequencies, AreAGeometricSeriesWithoutScaling) {
  for (const int64_t dim : {2, 10, 64, 128})
    for (const double base : {1e4, 5e5, 1e6})
      expect_frequencies(rotary_frequencies(spec_of(dim, base), 4096), plain(base, dim));
}

TEST(RotaryFrequencies, LinearScalingDividesThem) {
  auto expected = plain(1e4, 64);
  for (double& f : expected) f /= 4;
  expect_frequencies(rotary_frequencies(spec_of(64, 1e4, {.kind = Kind::kLinear, .factor = 4}), 77),
                     expected);
}

TEST(RotaryFrequencies, DynamicScalingRaisesTheBaseBeyondTheOriginalLength) {
  const RotaryScaling scaling = {.kind = Kind::kDynamic, .factor = 2, .original_positions = 16};
  for (const int64_t context : {1, 16}) {
    SCOPED_TRACE(context);
    expect_frequencies(rotary_frequencies(spec_of(16, 1e4, scaling), context), plain(1e4, 16));
  }
  for (const int64_t context : {17, 37, 4096}) {
    SCOPED_TRACE(context);
    const double growth = 2.0 * static_cast<double>(context) / 16 - (2.0 - 1);
    const double base = 1e4 * std::pow(growth, 16.0 / (16 - 2));
    expect_frequencies(rotary_frequencies(spec_of(16, 1e4, scaling), context), plain(base, 16));
  }
}

TEST(RotaryFrequencies, Llama3ScalingStretchesLongWavelengths) {
  const RotaryScaling scaling = {.kind = Kind::kLlama3,
                                 .factor = 8,
                                 .low_frequency_factor = 1,
                                 .high_frequency_factor = 4,
                                 .original_positions = 8192};
  auto expected = plain(5e5, 128);
  int kept = 0, blended = 0, stretched = 0;
  for (double& f : expected) {
    const double wavelength = 2 * std::numbers::pi / f;
    const double low = 8192.0 / 1, high = 8192.0 / 4;
    if (wavelength < high) {
      ++kept;
    } else if (wavelength > low) {
      f /= 8;
      ++stretched;
    } else {
      const double smooth = (8192.0 / wavelength - 1) / (4 - 1);
      f = (1 - smooth) * f / 8 + smooth * f;
      ++blended;
    }
  }
  EXPECT_TRUE(kept > 0 && blended > 0 && stretched > 0);
  expect_frequencies(rotary_frequencies(spec_of(128, 5e5, scaling), 100), expected);
}

// By the formulas of the paper, one frequency at a time.
TEST(RotaryFrequencies, YarnBlendsBetweenTwoNumbersOfRotations) {
  RotaryScaling scaling = {.kind = Kind::kYarn, .factor = 4, .original_positions = 4096};
  for (const bool truncate : {true, false}) {
    scaling.truncate = truncate;
    const double base = 1e4;
    auto expected = plain(base, 64);
    const auto index = [&](double rotations) {
      return 64 * std::log(4096 / (rotations * 2 * std::numbers::pi)) / (2 * std::log(base));
    };
    double low = index(32), high = index(1);
    if (truncate) low = std::floor(low), high = std::ceil(high);
    int kept = 0, blended = 0, divided = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double share = (static_cast<double>(i) - low) / (high - low);
      if (share <= 0) {
        ++kept;
      } else if (share >= 1) {
        expected[i] /= 4;
        ++divided;
      } else {
        expected[i] = (1 - share) * expected[i] + share * expected[i] / 4;
        ++blended;
      }
    }
    EXPECT_TRUE(kept > 0 && blended > 0 && divided > 0);
    expect_frequencies(rotary_frequencies(spec_of(64, base, scaling), 100), expected);
  }
}

TEST(RotaryFrequencies, LongRopeDividesByTheFactorsOfTheContext) {
  RotaryScaling scaling = {.kind = Kind::kLongRope, .factor = 4, .original_positions = 32};
  scaling.short_factors = {1, 1.25, 1.5};
  scaling.long_factors = {2, 4, 8};
  for (const int64_t context : {1, 32, 33, 128}) {
    SCOPED_TRACE(context);
    auto expected = plain(1e4, 6);
    for (size_t i = 0; i < 3; ++i)
      expected[i] /= context > 32 ? scaling.long_factors[i] : scaling.short_factors[i];
    expect_frequencies(rotary_frequencies(spec_of(6, 1e4, scaling), context), expected);
  }
}

TEST(RotaryFrequencies, StatedByTheCheckpointOverrideEverything) {
  RotarySpec spec = spec_of(4, 1e4, {.kind = Kind::kLinear, .factor = 4});
  spec.frequencies = {0.5f, 0.25f};
  EXPECT_EQ(rotary_frequencies(spec, 10), spec.frequencies);
}

TEST(RotaryTables, HoldCosineAndSineOfPositionTimesFrequencyAndTheFactorOfAttention) {
  const auto backend = make_reference_backend(DType::kF32);
  RotarySpec spec = spec_of(6, 100);
  spec.scaling.attention_factor = 1.25;
  const RotaryTables tables = make_rotary_tables(spec, 50, 50, *backend);
  const auto frequencies = rotary_frequencies(spec, 50);
  ASSERT_EQ(tables.cosine.view().shape(), Shape({50, 3}));
  for (const int64_t position : {0, 1, 49})
    for (int64_t i = 0; i < 3; ++i) {
      const double angle =
          static_cast<double>(position) * double{frequencies[static_cast<size_t>(i)]};
      EXPECT_EQ(tables.cosine.view().row<float>(position)[i],
                static_cast<float>(1.25 * std::cos(angle)));
      EXPECT_EQ(tables.sine.view().row<float>(position)[i],
                static_cast<float>(1.25 * std::sin(angle)));
    }
}

}  // namespace
}  // namespace sluice::impl
