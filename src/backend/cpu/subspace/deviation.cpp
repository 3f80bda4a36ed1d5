#include "backend/cpu/subspace/deviation.h"

#include <cmath>

#include "core/threads.h"

namespace sluice::impl::cpu::subspace {
namespace {

// An E whose off-diagonal part is of smaller norm changes no residual beyond kCancels by more than
// half of 1e-5: 0.063 times that. In f32 most are; in bf16, a thousand times larger, none.
constexpr double kNegligible = 3e-7;

// A block of the off-diagonal part of E: its squared norm and its largest stored number.
struct Extent {
  double squares = 0, largest = 0;
};
template <typename T>
Extent measure_block(const Tensor& vectors, int64_t n, int64_t b, const Overlaps& to,
                     float* diagonal) {
  const int64_t first = b * gemm::kMaxVectors,
                count = std::min(gemm::kMaxVectors, vectors.rows() - first);
  const T* rows[gemm::kMaxVectors];
  for (int64_t k = 0; k < count; ++k) rows[k] = vectors.row<T>(first + k);
  Extent extent;
  for (int64_t j = first; j < vectors.rows(); ++j) {
    double dots[gemm::kMaxVectors];
    gemm::dot_vectors({.vectors = rows, .count = count, .n = n}, vectors.row<T>(j), dots);
    for (int64_t k = 0; k < count && first + k < j; ++k) {
      to.set<T>(first + k, j, 2 * dots[k]);
      extent.squares += 2 * dots[k] * dots[k];
      extent.largest = std::max(extent.largest, std::abs(2 * dots[k]));
    }
    if (j < first + count) diagonal[j] = static_cast<float>(dots[j - first] - 1);
  }
  return extent;
}

template <typename T>
Deviation measure(const Tensor& vectors, int64_t n_in) {
  Overlaps overlaps(vectors.rows(), vectors.dtype());
  Deviation result;
  result.diagonal.resize(static_cast<size_t>(vectors.rows()));
  std::vector<Extent> blocks(static_cast<size_t>(overlaps.n_blocks()));
  const int64_t n = gemm::padded_to_line(n_in, vectors.dtype());
  parallel_for(overlaps.n_blocks(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      blocks[static_cast<size_t>(b)] =
          measure_block<T>(vectors, n, b, overlaps, result.diagonal.data());
  });
  Extent all;
  for (const Extent& block : blocks) {
    all.squares += block.squares;
    all.largest = std::max(all.largest, block.largest);
  }
  if (std::sqrt(all.squares) <= kNegligible) return result;
  const double unit = sizeof(T) == 2 ? 0x1p-9 : 0x1p-24;
  const double least = unit / std::sqrt(3) * all.largest / 1e-5;  // error / (2 * 5e-6)
  result.cancels = std::max(kCancels, least * least);
  result.overlaps = std::move(overlaps);
  return result;
}

}  // namespace

Deviation deviation_of(const Tensor& vectors, int64_t n_in) {
  return vectors.dtype() == DType::kBF16 ? measure<BFloat16>(vectors, n_in)
                                         : measure<float>(vectors, n_in);
}

}  // namespace sluice::impl::cpu::subspace
