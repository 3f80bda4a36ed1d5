#include "backend/select_basis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "core/error.h"
#include "core/threads.h"

namespace sluice::impl {
namespace {

// Eigenvectors rounded to float32 deviate by about 1e-6.
constexpr double kMostDeviation = 1e-3;

// Products of one vector with several, side by side: one sum alone waits for every addition.
constexpr int64_t kSums = 8;

// Sum over i of (v . v_i - [is v_i itself])^2, twice where i is before it.
double squared_deviation(const std::vector<float>& vectors, int64_t d_model, int64_t index) {
  const float* v = vectors.data() + index * d_model;
  double total = 0;
  for (int64_t first = 0; first <= index; first += kSums) {
    std::array<double, kSums> sums{};
    const int64_t n = std::min(kSums, index + 1 - first);
    const float* others = vectors.data() + first * d_model;
    for (int64_t k = 0; k < d_model; ++k)
      for (int64_t i = 0; i < n; ++i)
        sums[static_cast<size_t>(i)] += double{v[k]} * double{others[i * d_model + k]};
    for (int64_t i = 0; i < n; ++i) {
      const double error = sums[static_cast<size_t>(i)] - (first + i == index ? 1 : 0);
      total += (first + i == index ? 1 : 2) * error * error;
    }
  }
  return total;
}

// The Frobenius norm, which is at least the spectral one, and what its sums may have lost.
double deviation_of(const std::vector<float>& vectors, int64_t rank, int64_t d_model) {
  std::vector<double> parts(static_cast<size_t>(rank));
  parallel_for(rank, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      parts[static_cast<size_t>(i)] = squared_deviation(vectors, d_model, i);
  });
  double sum = 0;
  for (const double part : parts) sum += part;
  return std::sqrt(sum) + static_cast<double>(rank * d_model) * 0x1p-51;
}

}  // namespace

SelectionBasis::SelectionBasis(int64_t rank, int64_t d_model, std::vector<float> vectors)
    : rank_(rank), d_model_(d_model), vectors_(std::move(vectors)) {
  if (rank < 1 || rank > d_model)
    throw Error("a basis of " + std::to_string(rank) + " vectors in " + std::to_string(d_model) +
                " dimensions: the rank must be from 1 to the dimension");
  SLUICE_CHECK(static_cast<int64_t>(vectors_.size()) == rank * d_model);
  deviation_ = deviation_of(vectors_, rank, d_model);
  if (!(deviation_ <= kMostDeviation))  // also where a number is not finite
    throw Error("the vectors of a selection basis are not orthonormal",
                /*hint=*/"was the file of bases damaged?");
  std::vector<float> rounded = vectors_;
  for (float& x : rounded) x = to_float(to_bfloat16(x));
  deviation_bf16_ = deviation_of(rounded, rank, d_model);
}

}  // namespace sluice::impl
