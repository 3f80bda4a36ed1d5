#include "backend/cpu/gemm/blocks/activations.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

#include "backend/cpu/primitives/rows.h"

namespace sluice::impl::cpu::gemm {

namespace {

template <typename T>
void grow(std::vector<T>& values, int64_t n) {
  if (values.size() < static_cast<size_t>(n)) values.resize(static_cast<size_t>(n));
}

// Lanes of their own, so that the loop becomes vector code.
float sum_of_squares(const float* x, int64_t n) {
  constexpr int64_t kLanes = 16;
  std::array<float, kLanes> squares{};
  for (int64_t i = 0; i < n; i += kLanes)
    for (size_t j = 0; j < kLanes; ++j)
      squares[j] += x[i + static_cast<int64_t>(j)] * x[i + static_cast<int64_t>(j)];
  return std::accumulate(squares.begin(), squares.end(), 0.0f);
}

}  // namespace

void QuantisedRows::set(const ConstTensor& x, DType type, const BlockKernel& kernel) {
  layout_ = make_block_layout(type);
  order_ = kernel.order;
  first_ = layout_.block == kSubBlock ? kernel.first : 0;
  n_rows_ = x.rows();
  const int64_t n_in = x.row_elements();
  n_blocks_ = n_in / layout_.block;
  resize(rows_, (order_ == XOrder::kPairs ? n_rows_ + n_rows_ % 2 : n_rows_) * n_blocks_);
  terms_.clear();
  thread_local std::vector<float> wide;
  grow(wide, n_in);
  for (int64_t row = 0; row < n_rows_; ++row) {
    if (x.dtype() != DType::kF32) primitives::widen(x.row<BFloat16>(row), n_in, wide.data());
    set_row(row, x.dtype() == DType::kF32 ? x.row<float>(row) : wide.data());
  }
}

void QuantisedRows::resize(Storage& storage, int64_t n_blocks) const {
  const int64_t n_scales = n_blocks * (layout_.block / layout_.scale_width);
  grow(storage.values, n_blocks * layout_.block * (order_ == XOrder::kPlain ? 1 : 2));
  grow(storage.starts, n_scales * 4);
  grow(storage.scales, n_blocks);
  grow(storage.products, n_scales);
  grow(storage.sums, n_scales);
}

void QuantisedRows::set_row(int64_t row, const float* x) {
  const int64_t n_in = n_blocks_ * layout_.block;
  const float limit = kOutlier * std::sqrt(sum_of_squares(x, n_in) / static_cast<float>(n_in));
  const bool pairs = order_ == XOrder::kPairs;
  std::array<int8_t, kLargestBlock> q;
  for (int64_t b = 0; b < n_blocks_; ++b) {
    const float* block = x + b * layout_.block;
    const float scale = set_block(block,
                                  {.place = (pairs ? row / 2 : row) * n_blocks_ + b,
                                   .block = row * n_blocks_ + b,
                                   .half = pairs ? row % 2 : 0,
                                   .alone = !pairs || (row % 2 == 0 && row + 1 == n_rows_)},
                                  rows_, q.data());
    if (!(127 * scale > limit)) continue;
    std::array<float, kLargestBlock> rest;
    for (size_t i = 0; i < static_cast<size_t>(layout_.block); ++i)
      rest[i] = block[i] - scale * static_cast<float>(q[i]);
    const int64_t index = n_terms();
    terms_.emplace_back(row, b);
    resize(of_terms_, index + 1);
    set_block(rest.data(), {.place = index, .block = index, .half = 0, .alone = true}, of_terms_,
              q.data());
  }
}

float QuantisedRows::set_block(const float* x, const Slot& slot, Storage& storage,
                               int8_t* q) const {
  const float scale = quantise_activations(x, layout_.block, q);
  storage.scales[static_cast<size_t>(slot.block)] = scale;
  const int64_t n_scales = layout_.block / layout_.scale_width;
  for (int64_t s = 0; s < n_scales; ++s) {
    const int8_t* values = q + s * layout_.scale_width;
    const int32_t sum = std::accumulate(values, values + layout_.scale_width, int32_t{0});
    storage.sums[static_cast<size_t>(slot.block * n_scales + s)] = sum;
    storage.products[static_cast<size_t>(slot.block * n_scales + s)] =
        scale * static_cast<float>(sum);
    int32_t* const starts = storage.starts.data() + (slot.place * n_scales + s) * 4;
    for (int64_t i : {slot.half, slot.half + 2}) starts[i] = first_ + layout_.offset * sum;
    if (slot.alone) starts[1] = starts[3] = 0;
  }
  if (order_ == XOrder::kPlain) {
    std::copy_n(q, layout_.block, storage.values.data() + slot.place * layout_.block);
    return scale;
  }
  int8_t* const values = storage.values.data() + slot.place * 2 * layout_.block;
  for (int64_t i = 0; i < layout_.block; i += kChunk) {
    std::memcpy(values + 2 * i + slot.half * kChunk, q + i, kChunk);
    if (slot.alone) std::memcpy(values + 2 * i + kChunk, q + i, kChunk);
  }
  return scale;
}

QuantisedRow QuantisedRows::at(const Storage& storage, int64_t place, int64_t block) const {
  const int64_t n_scales = layout_.block / layout_.scale_width;
  return {
      .values = storage.values.data() + place * layout_.block * (order_ == XOrder::kPlain ? 1 : 2),
      .scales = storage.scales.data() + block,
      .starts = storage.starts.data() + place * n_scales * 4,
      .sums = storage.sums.data() + block * n_scales,
      .products = storage.products.data() + block * n_scales};
}

QuantisedRow QuantisedRows::row(int64_t index) const {
  return at(rows_, (order_ == XOrder::kPairs ? index / 2 : index) * n_blocks_, index * n_blocks_);
}

BlockTerm QuantisedRows::term(int64_t index) const {
  const auto [row, block] = terms_[static_cast<size_t>(index)];
  return {row, block, at(of_terms_, index, index)};
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
