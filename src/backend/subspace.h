// Gated subspace and graded linear layers: the types of the seam. docs/algorithm.md, section 4.

#pragma once

#include <span>

#include "core/tensor.h"

namespace sluice::impl {

// Directions V that the inputs of a linear layer lie near, in the form one backend multiplies with.
// They are kept in the compute dtype, so in bf16 they are orthonormal to bf16's precision only:
// everything below speaks of the directions as they are kept.
class SubspaceBasis {
 public:
  virtual ~SubspaceBasis() = default;
  int64_t rank() const { return rank_; }
  int64_t n_in() const { return n_in_; }
  int64_t bytes() const { return bytes_; }  // what one pass over it reads

 protected:
  SubspaceBasis(int64_t rank, int64_t n_in, int64_t bytes)
      : rank_(rank), n_in_(n_in), bytes_(bytes) {}

 private:
  int64_t rank_, n_in_, bytes_;
};

// coordinates = V^T x, and the share of x that they miss: ||x - V coordinates|| / ||x||.
//
// The coordinates that count are those written here, rounded to the compute dtype, because they are
// what the product with the image W V takes: W times the missed part is the error of that product,
// in addition to the round-off that every product has. So in bf16 a row within the span of V misses
// about 2^-8 (the rounding of V and of the coordinates), not 0. The share is right to 1e-5 however
// small it is: where ||x||^2 - ||c||^2 would cancel, x - V c itself is summed. A row of zeros
// misses nothing (0); one whose norm, or whose sums in float32, are not finite misses everything
// (1).
struct ProjectArgs {
  const SubspaceBasis* basis;
  ConstTensor x;               // (n_rows, n_in) compute dtype
  Tensor coordinates;          // (n_rows, rank) compute dtype
  std::span<float> residuals;  // (n_rows), host memory
};

// A matrix stored by columns, so that a product can leave some of them unread.
class ColumnWeights {
 public:
  virtual ~ColumnWeights() = default;
  int64_t n_out() const { return n_out_; }
  int64_t n_in() const { return n_in_; }
  int64_t column_bytes() const { return column_bytes_; }  // what one element of x makes it read
  // Share of the columns up to which one row's product takes less time than with the whole matrix.
  double worth_share() const { return worth_share_; }

 protected:
  ColumnWeights(int64_t n_out, int64_t n_in, int64_t column_bytes, double worth_share)
      : n_out_(n_out), n_in_(n_in), column_bytes_(column_bytes), worth_share_(worth_share) {}

 private:
  int64_t n_out_, n_in_, column_bytes_;
  double worth_share_;
};

// Keeps, in every row, the fewest elements that leave out no more than epsilon^2 of its energy:
// elements are left out by rising magnitude, ties by rising index, while the float64 sum of their
// squares, in that order, stays within epsilon * epsilon * (float64 sum of all, in index order).
// Exact zeros are always left out; with epsilon 0, and in a row without a finite norm, only they
// are. Every backend leaves out the same elements.
struct GradeArgs {
  ConstTensor x;  // (n_rows, n_in) f32 or bf16
  double epsilon;
  Tensor graded;            // (n_rows, n_in) like x, zero where left out; may be x itself
  std::span<int32_t> kept;  // (n_rows) how many are kept, host memory
};

}  // namespace sluice::impl
