#include "subspace/moments.h"

#include <algorithm>
#include <cmath>

#include "core/threads.h"
#include "subspace/blas.h"

namespace sluice::impl {
namespace {

// Rows that are multiplied at one time: enough for the product to be as fast as it gets, 32 MiB
// at d = 16384.
constexpr int64_t kBlockRows = 256;

template <typename T>
void copy_row(const ConstTensor& rows, int64_t row, double* out) {
  const T* from = rows.row<T>(row);
  for (int64_t i = 0; i < rows.row_elements(); ++i) out[i] = double{to_float(from[i])};
}

void widen_row(const ConstTensor& rows, int64_t row, double* out) {
  if (rows.dtype() == DType::kBF16)
    copy_row<BFloat16>(rows, row, out);
  else
    copy_row<float>(rows, row, out);
}

// Makes a row one long; false where it has no direction.
bool make_unit(double* row, int64_t d) {
  double squares = 0;
  for (int64_t i = 0; i < d; ++i) squares += row[i] * row[i];
  if (!(squares > 0) || !std::isfinite(squares)) return false;
  const double factor = 1 / std::sqrt(squares);
  for (int64_t i = 0; i < d; ++i) row[i] *= factor;
  return true;
}

}  // namespace

Moments::Moments(int64_t d) : d_(d) {
  if (d > blas::kMaxSide)
    throw Error("rows are " + std::to_string(d) + " numbers wide, second moments take at most " +
                    std::to_string(blas::kMaxSide),
                "calibrate a smaller model");
  sum_.resize(static_cast<size_t>(d * d));
}

void Moments::add(const ConstTensor& rows) {
  SLUICE_CHECK(rows.row_elements() == d_ && rows.device() == Device::kCpu);
  for (int64_t first = 0; first < rows.rows(); first += kBlockRows) {
    const int64_t n = std::min(kBlockRows, rows.rows() - first);
    block_.resize(static_cast<size_t>(n * d_));
    parallel_for(n, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) widen_row(rows, first + i, block_.data() + i * d_);
    });
    blas::add_products(block_, d_, sum_);
  }
  n_rows_ += rows.rows();
}

void Moments::add_unit(const ConstTensor& rows, const std::vector<bool>& skip) {
  SLUICE_CHECK(rows.row_elements() == d_ && rows.device() == Device::kCpu &&
               (skip.empty() || static_cast<int64_t>(skip.size()) == rows.rows()));
  for (int64_t next = 0; next < rows.rows();) {
    int64_t n = 0;
    block_.resize(static_cast<size_t>(kBlockRows * d_));
    for (; next < rows.rows() && n < kBlockRows; ++next) {
      if (!skip.empty() && skip[static_cast<size_t>(next)]) continue;
      double* row = block_.data() + n * d_;
      widen_row(rows, next, row);
      n += make_unit(row, d_) ? 1 : 0;
    }
    blas::add_products(std::span(block_).first(static_cast<size_t>(n * d_)), d_, sum_);
    n_rows_ += n;
  }
}

double Moments::total() const {
  double trace = 0;
  for (int64_t i = 0; i < d_; ++i) trace += sum_[static_cast<size_t>(i * d_ + i)];
  return trace;
}

}  // namespace sluice::impl
