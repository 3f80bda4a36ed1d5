// What the residual of a projection needs in addition to h = V^T x and the coordinates c:
//
//   ||x - V c||^2 = ||x||^2 - 2 c.h + c.c + c.(E c),   E = V^T V - 1,
//
// where E is what the vectors, as stored, are short of orthonormal.
//
// What the formula errs by, in parts of ||x||^2: sums are float64 but for the products within
// kDotLines lines (gemm/columns_simd.h), which are float32 chains of m <= 32 additions. An addition
// errs by up to u = 2^-24 of its partial sum p, by u / sqrt(3) in the mean square. |p| is at most
// ||v_b|| ||x_b|| over the elements b of a chain, so the errors of c.h, taken as independent, come
// to u / sqrt(3) sqrt(m sum_b ||v_b||^2 ||x_b||^2) ||c||: 2e-7 if directions and x lay within one
// chain, and sqrt(m / n) of that for directions spread over n inputs. Twice that over
// 2 sqrt(kCancels) = 0.063 is 6e-6 of ||x|| for the former, which is within the 1e-5 that
// ProjectArgs promises, and below 2e-6 for the latter from n = 320 on.

#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "backend/cpu/gemm/columns_simd.h"
#include "core/tensor.h"

namespace sluice::impl::cpu::subspace {

// Of ||x||^2, from docs/algorithm.md section 4.
constexpr double kCancels = 1e-3;

// The off-diagonal part of E, for c.(E c), with every pair once. Row i holds 2 E_ij at j > i and
// begins with the line that i is in; elements before j > i are zeros. The rows of a block of
// kMaxVectors begin at the same element, so they are equally long.
class Overlaps {
 public:
  Overlaps(int64_t rank, DType dtype)
      : rank_(rank),
        padded_(gemm::padded_to_line(rank, dtype)),
        line_(gemm::padded_to_line(1, dtype)) {
    int64_t n = 0;
    for (int64_t i = 0; i < rank; ++i) n += length(i);
    values_ = host_buffer(dtype, {n});
  }
  int64_t bytes() const {
    return values_.view().shape().numel() * element_bytes(values_.view().dtype());
  }
  int64_t n_blocks() const { return (rank_ + gemm::kMaxVectors - 1) / gemm::kMaxVectors; }

  template <typename T>
  void set(int64_t i, int64_t j, double value) const {
    row<T>(i)[gemm::stored_at<T>(j - first(i))] = from_float<T>(static_cast<float>(value));
  }
  // What rows of a block add to c.(E c); c stored as a vector is.
  template <typename T>
  double block(int64_t b, const T* c) const {
    const int64_t i = b * gemm::kMaxVectors, count = std::min(gemm::kMaxVectors, rank_ - i);
    const T* rows[gemm::kMaxVectors];
    for (int64_t k = 0; k < count; ++k) rows[k] = row<T>(i + k);
    double dots[gemm::kMaxVectors], sum = 0;
    gemm::dot_vectors({.vectors = rows, .count = count, .n = length(i)}, c + first(i), dots);
    for (int64_t k = 0; k < count; ++k) sum += to_float(c[gemm::stored_at<T>(i + k)]) * dots[k];
    return sum;
  }

 private:
  int64_t first(int64_t i) const { return i / line_ * line_; }
  int64_t length(int64_t i) const { return padded_ - first(i); }
  // Rows of the lines before have padded_, padded_ - line_, ... elements.
  template <typename T>
  T* row(int64_t i) const {
    const int64_t lines = i / line_, rows_before = first(i);
    return values_.view().data<T>() + rows_before * padded_ -
           rows_before * line_ * (lines - 1) / 2 + i % line_ * length(i);
  }
  int64_t rank_, padded_, line_;
  Buffer values_;
};

// What the formula needs in addition to V. Rounding a number S of E to bf16 errs by 2^-9 / sqrt(3)
// of it in the mean square, so c.(E c) errs by that of the largest S, however c lies; the least
// residual the formula may serve is where this comes to half of 1e-5. The diagonal, large where a
// direction is nearly an axis, is not rounded.
struct Deviation {
  std::vector<float> diagonal;       // (rank)
  std::optional<Overlaps> overlaps;  // none where they are negligible
  double cancels = kCancels;         // of ||x||^2
};
// Of vectors (rank, stride), padded with zeros from n_in to whole lines.
Deviation deviation_of(const Tensor& vectors, int64_t n_in);

}  // namespace sluice::impl::cpu::subspace
