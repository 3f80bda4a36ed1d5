// Rows of tokens made ready to be multiplied with each other, and the error their products carry.
//
// The kernel multiplies rows rounded to its own type; a product times both inverse norms is a
// cosine within gram_error of the exact one of docs/algorithm.md, section 1.

#pragma once

#include <span>
#include <vector>

#include "backend/cpu/gemm/gemm.h"
#include "core/tensor.h"

namespace sluice::impl::cpu::selection {

// Sums over k are cut into pieces this long, which bounds both the cache a panel takes and the
// chain of roundings.
constexpr int64_t kDepth = 512;

// The same bits as inverse_norm of backend/exact.h, for every row.
void inverse_norms(const ConstTensor& rows, std::span<double> out);

// What a row brings into its products.
struct Row {
  int64_t position = 0;
  double inverse_norm = 0;   // of the row as it was given
  float packed_inverse = 0;  // of the row as it is packed, a power of two aside
  float rounding = 0;        // at least |x - packed x| / |x|
  float residual = 0;        // of coordinates in a basis: the norm of what they leave out
  int exponent = 0;          // packed x is x / 2^exponent, rounded
};

// A bound on the error of a float32 sum of n products, for factors of norm 1.
double sum_error(int64_t n);

// A bound on |product * inverses - exact cosine| for rows that were rounded by so much.
double gram_error(int64_t d_model, double rounding_a, double rounding_b);
// The same for float32 sums of rows as they were given.
double float_dot_error(int64_t d_model);

// The rows of one block of tokens, in the kernel's type.
class Rows {
 public:
  Rows(const gemm::Kernel& kernel, int64_t d_model);

  // Takes rows[index] for every index; position and inverse norm of each come along.
  struct Source {
    ConstTensor rows;                       // (n_tokens, d_model) f32 or bf16
    std::span<const double> inverse_norms;  // (n_tokens)
    int64_t first_position;                 // of rows[0]
  };
  void assign(const Source& source, std::span<const int32_t> indices);
  // Or takes n rows of norm at most about 1, which have no exact form, one by one: x (d_model), of
  // which row says all but the rounding that packing adds.
  void resize(int64_t n);
  void set(int64_t i, const Row& row, const float* x);

  int64_t size() const { return static_cast<int64_t>(rows_.size()); }
  const Row& operator[](int64_t i) const { return rows_[static_cast<size_t>(i)]; }
  // (padded k) of the kernel's type; rows are stride() elements apart.
  const std::byte* packed(int64_t i) const {
    return packed_.data() + i * stride_ * element_bytes(kernel_->a_dtype);
  }
  int64_t stride() const { return stride_; }
  // The row as it was given: in place, or widened into scratch (d_model).
  const float* exact(int64_t i, float* scratch) const;
  DType source_dtype() const { return source_.rows.dtype(); }

 private:
  void pack(int64_t i);
  std::byte* packed(int64_t i) {
    return packed_.data() + i * stride_ * element_bytes(kernel_->a_dtype);
  }
  // Rounds x to the kernel's type; returns a bound on the distance.
  double put(const float* x, std::byte* to) const;

  const gemm::Kernel* kernel_;
  int64_t d_model_, stride_;
  Source source_{};
  std::vector<int32_t> indices_;
  std::vector<Row> rows_;
  std::vector<std::byte> packed_;
};

}  // namespace sluice::impl::cpu::selection
