#include "backend/cpu/gemm/blocks/activations.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "backend/cpu/gemm/blocks/layout.h"
#include "backend/cpu/primitives/rows.h"

namespace sluice::impl::cpu::gemm {

namespace {

template <typename T>
void grow(std::vector<T>& values, int64_t n) {
  if (values.size() < static_cast<size_t>(n)) values.resize(static_cast<size_t>(n));
}

// Lanes of their own, so that the loops become vector code.
bool has_outlier(const float* x, int64_t n) {
  constexpr int64_t kLanes = 16;
  std::array<float, kLanes> squares{}, largest{};
  for (int64_t i = 0; i < n; i += kLanes)
    for (size_t j = 0; j < kLanes; ++j) {
      const float square = x[i + static_cast<int64_t>(j)] * x[i + static_cast<int64_t>(j)];
      squares[j] += square;
      largest[j] = largest[j] < square ? square : largest[j];
    }
  const float sum = std::accumulate(squares.begin(), squares.end(), 0.0f);
  const float most = *std::max_element(largest.begin(), largest.end());
  return most * static_cast<float>(n) > kOutlier * kOutlier * sum;
}

}  // namespace

void QuantisedRows::set(const ConstTensor& x, DType type, bool pairs) {
  const BlockLayout layout = make_block_layout(type);
  type_ = type;
  pairs_ = pairs;
  n_in_ = x.row_elements();
  n_blocks_ = n_in_ / layout.block;
  n_sums_ = n_in_ / layout.scale_width;
  const int64_t n = x.rows();
  grow(wide_, n * n_in_);
  row_of_.resize(static_cast<size_t>(n));
  std::iota(row_of_.begin(), row_of_.end(), 0);
  for (int64_t r = 0; r < n; ++r) {
    float* wide = wide_.data() + r * n_in_;
    if (x.dtype() == DType::kF32)
      std::copy_n(x.row<float>(r), n_in_, wide);
    else
      primitives::widen(x.row<BFloat16>(r), n_in_, wide);
    if (has_outlier(wide, n_in_)) row_of_.push_back(r);
  }
  n_rows_ = std::ssize(row_of_);
  resize();
  for (int64_t r = 0; r < n_rows_; ++r) {
    float* wide = wide_.data() + row_of(r) * n_in_;
    if (r >= n) subtract(row_of(r), wide);
    set_row(r, wide);
  }
}

void QuantisedRows::resize() {
  grow(plain_, n_rows_ * n_in_);
  if (pairs_) grow(values_, (n_rows_ + 1) / 2 * 2 * n_in_);
  grow(scales_, n_rows_ * n_blocks_);
  grow(sums_, n_rows_ * n_sums_);
  grow(products_, n_rows_ * n_sums_);
}

void QuantisedRows::subtract(int64_t row, float* x) const {
  const int64_t block = n_in_ / n_blocks_;
  const int8_t* q = plain_.data() + row * n_in_;
  const float* scales = scales_.data() + row * n_blocks_;
  for (int64_t b = 0; b < n_blocks_; ++b)
    for (int64_t i = b * block; i < (b + 1) * block; ++i)
      x[i] -= scales[b] * static_cast<float>(q[i]);
}

void QuantisedRows::set_row(int64_t row, const float* x) {
  const BlockLayout layout = make_block_layout(type_);
  int8_t* q = plain_.data() + row * n_in_;
  for (int64_t b = 0; b < n_blocks_; ++b)
    scales_[static_cast<size_t>(row * n_blocks_ + b)] =
        quantise_activations(x + b * layout.block, layout.block, q + b * layout.block);
  if (layout.offset != 0 || layout.minima) {
    const int factor = layout.offset != 0 ? layout.offset : 1;
    for (int64_t s = 0; s < n_sums_; ++s) {
      int sum = 0;
      for (int64_t i = 0; i < layout.scale_width; ++i) sum += q[s * layout.scale_width + i];
      const auto at = static_cast<size_t>(row * n_sums_ + s);
      sums_[at] = factor * sum;
      if (layout.minima && layout.block == kSubBlock)
        products_[at] = scales_[at] * static_cast<float>(sum);
    }
  }
  if (!pairs_) return;
  int8_t* pair = values_.data() + row / 2 * 2 * n_in_;
  const bool alone = row % 2 == 0 && row + 1 == n_rows_;
  for (int64_t i = 0; i < n_in_; i += kChunk) {
    std::memcpy(pair + 2 * i + row % 2 * kChunk, q + i, kChunk);
    if (alone) std::memcpy(pair + 2 * i + kChunk, q + i, kChunk);
  }
}

QuantisedRow QuantisedRows::row(int64_t index) const {
  return {.values = pairs_ ? values_.data() + index / 2 * 2 * n_in_ : plain_.data() + index * n_in_,
          .scales = scales_.data() + index * n_blocks_,
          .sums = sums_.data() + index * n_sums_,
          .products = products_.data() + index * n_sums_};
}

std::vector<const BlockKernel*> block_kernels() {
  std::vector<const BlockKernel*> all;
  for (const BlockKernel* kernel : {block_kernel_portable(), block_kernel_dotprod(),
                                    block_kernel_i8mm(), block_kernel_avx2(), block_kernel_vnni()})
    if (kernel != nullptr) all.push_back(kernel);
  return all;
}

const BlockKernel& block_kernel() {
  static const BlockKernel& fastest = *block_kernels().back();
  return fastest;
}

}  // namespace sluice::impl::cpu::gemm
