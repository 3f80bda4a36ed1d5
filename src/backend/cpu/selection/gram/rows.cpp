#include "backend/cpu/selection/gram/rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "backend/cpu/primitives/rows.h"
#include "backend/cpu/selection/gram/simd.h"
#include "backend/exact.h"
#include "core/threads.h"

namespace sluice::impl::cpu::selection {
namespace {

// Rows further apart than their length, so that a power of two does not share cache sets.
constexpr int64_t kRowPadBytes = 64;

// Elements worth a thread.
constexpr int64_t kThreadRowElements = 32768;

// Rows of norms outside 2^-40 ... 2^40 are scaled before packing: their products could leave
// float32, and BF16 instructions take what is below its normal range for zero.
constexpr double kLargestInverse = 0x1p40;

template <typename T>
void inverse_norms_of(const ConstTensor& rows, int64_t first, int64_t n_rows, double* out) {
  std::array<const T*, kSquareRows> x;
  std::array<double, kSquareRows> sums;
  // A last group that is short repeats its last row.
  for (int64_t r = 0; r < kSquareRows; ++r)
    x[static_cast<size_t>(r)] = rows.row<T>(first + std::min(r, n_rows - 1));
  sums_of_squares(x.data(), rows.row_elements(), sums.data());
  for (int64_t r = 0; r < n_rows; ++r) {
    const double sum = sums[static_cast<size_t>(r)];
    out[r] = sum > 0 ? 1 / std::sqrt(sum) : 0;
  }
}

// The exact cosine is that of unit rows rounded to float32, 2^-24 for each factor.
constexpr double kUnitRowError = 0x1p-23 + 0x1p-40;

}  // namespace

// Roundings that one term of a float32 sum of n meets, with room for the few around it, in units
// of 2^-23: Arm's BF16 instructions round sums to odd, which errs by up to that much.
double sum_error(int64_t n) {
  const int64_t chain = std::min(n, kDepth) + (n + kDepth - 1) / kDepth;
  return static_cast<double>(chain + 16) * 0x1p-23;
}

void inverse_norms(const ConstTensor& rows, std::span<double> out) {
  const int64_t groups = (rows.rows() + kSquareRows - 1) / kSquareRows;
  parallel_for(groups, 1 + kThreadRowElements / (kSquareRows * rows.row_elements()),
               [&](int64_t begin, int64_t end) {
                 for (int64_t group = begin; group < end; ++group) {
                   const int64_t first = group * kSquareRows,
                                 n = std::min(kSquareRows, rows.rows() - first);
                   if (rows.dtype() == DType::kBF16)
                     inverse_norms_of<BFloat16>(rows, first, n, out.data() + first);
                   else
                     inverse_norms_of<float>(rows, first, n, out.data() + first);
                 }
               });
}

// a.b - a'.b' = (a - a').b + a'.(b - b'), by Cauchy and Schwarz.
double gram_error(int64_t d_model, double rounding_a, double rounding_b) {
  const double packed_norms = (1 + rounding_a) * (1 + rounding_b);
  return rounding_a + rounding_b + rounding_a * rounding_b + sum_error(d_model) * packed_norms +
         kUnitRowError;
}

double float_dot_error(int64_t d_model) {
  return static_cast<double>(d_model + 16) * 0x1p-24 + kUnitRowError;
}

Rows::Rows(const gemm::Kernel& kernel, int64_t d_model)
    : kernel_(&kernel),
      d_model_(d_model),
      stride_(kernel.padded_k(d_model) + kRowPadBytes / element_bytes(kernel.a_dtype)) {
  SLUICE_CHECK(kernel.a_dtype == kernel.b_dtype);
}

void Rows::resize(int64_t n) {
  source_ = {ConstTensor(nullptr, kernel_->a_dtype, {0, d_model_}), {}, 0};
  rows_.resize(static_cast<size_t>(n));
  packed_.resize(
      std::max(packed_.size(), static_cast<size_t>(n * stride_ * element_bytes(kernel_->a_dtype))));
}

void Rows::assign(const Source& source, std::span<const int32_t> indices) {
  resize(static_cast<int64_t>(indices.size()));
  source_ = source;
  indices_.assign(indices.begin(), indices.end());
  parallel_for(size(), 1 + kThreadRowElements / d_model_, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) pack(i);
  });
}

const float* Rows::exact(int64_t i, float* scratch) const {
  const int64_t row = indices_[static_cast<size_t>(i)];
  if (source_.rows.dtype() == DType::kF32) return source_.rows.row<float>(row);
  primitives::widen(source_.rows.row<BFloat16>(row), d_model_, scratch);
  return scratch;
}

void Rows::set(int64_t i, const Row& row, const float* x) {
  rows_[static_cast<size_t>(i)] = row;
  rows_[static_cast<size_t>(i)].rounding += static_cast<float>(put(x, packed(i)));
}

double Rows::put(const float* x, std::byte* to) const {
  const int64_t bytes = element_bytes(kernel_->a_dtype);
  std::memset(to + d_model_ * bytes, 0, static_cast<size_t>((stride_ - d_model_) * bytes));
  if (kernel_->a_dtype == DType::kF32) {
    std::memcpy(to, x, static_cast<size_t>(d_model_) * sizeof(float));
    return 0;
  }
  auto* narrowed = reinterpret_cast<BFloat16*>(to);
  primitives::narrow(x, d_model_, narrowed);
  // A float32 sum of positive terms errs by 2^-24 each; squares below its range are lost, which is
  // less than 2^-28 of a norm of at least 2^-40.
  const double distance = std::sqrt(double{squared_distance(x, narrowed, d_model_)});
  return distance * (1 + static_cast<double>(d_model_ + 16) * 0x1p-24);
}

void Rows::pack(int64_t i) {
  const int64_t index = indices_[static_cast<size_t>(i)];
  const double inverse = source_.inverse_norms[static_cast<size_t>(index)];
  Row& row = rows_[static_cast<size_t>(i)];
  row = {.position = source_.first_position + index, .inverse_norm = inverse};
  std::byte* to = packed(i);
  const int64_t bytes = element_bytes(kernel_->a_dtype);
  std::memset(to + d_model_ * bytes, 0, static_cast<size_t>((stride_ - d_model_) * bytes));
  if (inverse == 0) {
    std::memset(to, 0, static_cast<size_t>(d_model_ * bytes));
    return;
  }
  const bool in_range = inverse <= kLargestInverse && inverse >= 1 / kLargestInverse;
  if (in_range && source_.rows.dtype() == kernel_->a_dtype) {
    std::memcpy(to, source_.rows.bytes() + index * source_.rows.row_stride() * bytes,
                static_cast<size_t>(d_model_ * bytes));
    row.packed_inverse = static_cast<float>(inverse);
    return;
  }
  thread_local std::vector<float> widened, scaled;
  widened.resize(static_cast<size_t>(d_model_));
  const float* x = exact(i, widened.data());
  if (!in_range) {
    row.exponent = -std::ilogb(inverse);
    scaled.resize(static_cast<size_t>(d_model_));
    for (int64_t k = 0; k < d_model_; ++k)
      scaled[static_cast<size_t>(k)] = static_cast<float>(std::ldexp(double{x[k]}, -row.exponent));
    x = scaled.data();
  }
  const double packed_inverse = std::ldexp(inverse, row.exponent);
  row.packed_inverse = static_cast<float>(packed_inverse);
  const double distance = put(x, to);
  if (kernel_->a_dtype == DType::kBF16)
    row.rounding = static_cast<float>(distance * packed_inverse + 0x1p-28);
}

}  // namespace sluice::impl::cpu::selection
