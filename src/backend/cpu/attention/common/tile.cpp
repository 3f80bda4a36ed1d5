#include "backend/cpu/attention/common/tile.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "backend/cpu/gemm/interleave.h"
#include "backend/cpu/primitives/rows.h"

namespace sluice::impl::cpu::attention {
namespace {

// Queries of a tile, at most. Only eight register tiles of AMX have more; there 32 to 128 queries
// took the same time.
constexpr int64_t kMostQueries = 128;

// put_row with the kernel's kq known, so that its short runs need no loop.
template <int kQ, typename T>
void put_runs(const TileShape& shape, Panels panels, int64_t index, const T* key, const T* value) {
  const gemm::Kernel& kernel = shape.kernel;
  const int64_t nr = kernel.nr, hd = shape.head_dim;
  const Panels block = panels.from(shape, index / shape.block_keys);
  const int64_t column = index % shape.block_keys;
  T* keys =
      reinterpret_cast<T*>(block.keys) + column / nr * kernel.panel_elements(hd) + column % nr * kQ;
  int64_t k = 0;
  for (; k + kQ <= hd; k += kQ, keys += nr * kQ) std::memcpy(keys, key + k, kQ * sizeof(T));
  for (; k < hd; ++k) *keys++ = key[k];
  T* values = reinterpret_cast<T*>(block.values) + column / kQ * nr * kQ + column % kQ;
  for (int64_t first = 0; first < hd; first += nr) {
    const int64_t n = std::min(nr, hd - first);
    for (int64_t i = 0; i < n; ++i) values[i * kQ] = value[first + i];
    values += kernel.panel_elements(shape.block_keys);
  }
}

// Values of kQ rows at once: what a panel holds of them lies side by side.
template <int kQ, typename T>
void put_value_group(const TileShape& shape, T* values, const T* rows) {
  const int64_t nr = shape.kernel.nr, hd = shape.head_dim;
  const int64_t stride = shape.kernel.panel_elements(shape.block_keys);
  if constexpr (kQ == 4 && std::is_same_v<T, BFloat16>)
    return gemm::interleave4(rows, hd, nr, stride, values);
  for (int64_t first = 0; first < hd; first += nr, values += stride) {
    const int64_t n = std::min(nr, hd - first);
    for (int64_t i = 0; i < n; ++i)
      for (int q = 0; q < kQ; ++q) values[i * kQ + q] = rows[q * hd + first + i];
  }
}

template <int kQ, typename T>
void put_run(const TileShape& shape, Panels panels, int64_t index, int64_t n, const T* keys,
             const T* values) {
  const gemm::Kernel& kernel = shape.kernel;
  const int64_t nr = kernel.nr, hd = shape.head_dim, whole = hd / kQ * kQ;
  const Panels block = panels.from(shape, index / shape.block_keys);
  const int64_t first = index % shape.block_keys;
  for (int64_t j = 0; j < n; ++j) {
    const int64_t column = first + j;
    T* to = reinterpret_cast<T*>(block.keys) + column / nr * kernel.panel_elements(hd) +
            column % nr * kQ;
    const T* key = keys + j * hd;
    for (int64_t k = 0; k < whole; k += kQ, to += nr * kQ) std::memcpy(to, key + k, kQ * sizeof(T));
    for (int64_t k = whole; k < hd; ++k) *to++ = key[k];
  }
  for (int64_t j = 0; j < n; j += kQ)
    put_value_group<kQ>(shape, reinterpret_cast<T*>(block.values) + (first + j) * nr,
                        values + j * hd);
}

// Calls `put` with the kernel's kq as a constant.
template <typename Put>
void with_kq(const gemm::Kernel& kernel, const Put& put) {
  SLUICE_CHECK(kernel.kq == 1 || kernel.kq == 2 || kernel.kq == 4);
  if (kernel.kq == 1)
    put.template operator()<1>();
  else if (kernel.kq == 2)
    put.template operator()<2>();
  else
    put.template operator()<4>();
}

}  // namespace

TileShape::TileShape(DType dtype, int64_t dim, int64_t n_keys)
    : kernel(gemm::kernel_for(dtype)),
      head_dim(dim),
      padded_dim(round_up(dim, kernel.nr)),
      block_keys(round_up(n_keys, kernel.nr)),
      block_queries(std::min(8 * kernel.mr, kMostQueries)),
      key_bytes(block_keys / kernel.nr * kernel.panel_elements(dim) *
                element_bytes(kernel.b_dtype)),
      value_bytes(padded_dim / kernel.nr * kernel.panel_elements(block_keys) *
                  element_bytes(kernel.b_dtype)) {}

template <typename T>
void put_row(const TileShape& shape, Panels panels, int64_t index, const T* key, const T* value) {
  with_kq(shape.kernel, [&]<int kQ>() { put_runs<kQ>(shape, panels, index, key, value); });
}
template void put_row(const TileShape&, Panels, int64_t, const float*, const float*);
template void put_row(const TileShape&, Panels, int64_t, const BFloat16*, const BFloat16*);

template <typename T>
void put_rows(const TileShape& shape, Panels panels, int64_t index, int64_t n, const T* keys,
              const T* values) {
  const int64_t kq = shape.kernel.kq;
  if (index % kq == 0 && n % kq == 0)
    return with_kq(shape.kernel,
                   [&]<int kQ>() { put_run<kQ>(shape, panels, index, n, keys, values); });
  for (int64_t j = 0; j < n; ++j)
    put_row(shape, panels, index + j, keys + j * shape.head_dim, values + j * shape.head_dim);
}
template void put_rows(const TileShape&, Panels, int64_t, int64_t, const float*, const float*);
template void put_rows(const TileShape&, Panels, int64_t, int64_t, const BFloat16*,
                       const BFloat16*);

QueryTile::QueryTile(const TileShape& shape, float scale, TileScratch& scratch, float cap)
    : shape_(shape),
      scale_(scale),
      cap_(cap),
      s_(scratch),
      query_stride_(shape.kernel.padded_k(shape.head_dim) + 16) {
  const auto rows = static_cast<size_t>(shape.block_queries);
  const auto a_bytes = static_cast<size_t>(element_bytes(shape.kernel.a_dtype));
  s_.queries.resize(rows * static_cast<size_t>(query_stride_) * a_bytes);
  s_.scores.resize(rows * static_cast<size_t>(score_stride()));
  if (shape.kernel.a_dtype != DType::kF32) s_.weights.resize(s_.scores.size() * a_bytes);
  s_.sums.resize(rows * static_cast<size_t>(shape.padded_dim));
  s_.state.resize(rows);
  s_.columns.resize(rows);
}

void QueryTile::load(const ConstTensor& queries, int64_t row, int64_t n, int64_t head) {
  const int64_t hd = shape_.head_dim;
  n_ = n;
  for (int64_t i = 0; i < n; ++i) {
    if (shape_.kernel.a_dtype == DType::kBF16) {
      auto* to = reinterpret_cast<BFloat16*>(s_.queries.data()) + i * query_stride_;
      std::memcpy(to, queries.row<BFloat16>(row + i) + head * hd,
                  static_cast<size_t>(hd) * sizeof(BFloat16));
      std::fill(to + hd, to + query_stride_, BFloat16{0});
    } else {
      auto* to = reinterpret_cast<float*>(s_.queries.data()) + i * query_stride_;
      if (queries.dtype() == DType::kF32)
        std::memcpy(to, queries.row<float>(row + i) + head * hd,
                    static_cast<size_t>(hd) * sizeof(float));
      else
        primitives::widen(queries.row<BFloat16>(row + i) + head * hd, hd, to);
    }
  }
  std::fill(s_.sums.begin(), s_.sums.end(), 0.0f);
  std::fill(s_.state.begin(), s_.state.end(), primitives::SoftmaxState{-INFINITY, 0.0f});
}

// Scores are computed up to the last key that some query of a register tile sees.
void QueryTile::set_columns(const Mask& mask) {
  const gemm::Kernel& kernel = shape_.kernel;
  for (int64_t i = 0; i < n_; i += kernel.mr) {
    const int64_t end = std::min(i + kernel.mr, n_);
    std::fill(s_.columns.begin() + i, s_.columns.begin() + end,
              kernel.panels(mask.end_of(end - 1)) * kernel.nr);
  }
}

void QueryTile::score_columns(const std::byte* keys, float* scores, int64_t stride) const {
  const gemm::Kernel& kernel = shape_.kernel;
  const int64_t a_bytes = element_bytes(kernel.a_dtype);
  const int64_t panel_bytes = shape_.key_bytes / (shape_.block_keys / kernel.nr);
  const int64_t k = kernel.padded_k(shape_.head_dim);
  const gemm::UsedKernel used(kernel);
  for (int64_t column = 0; column < s_.columns[static_cast<size_t>(n_ - 1)];
       column += kernel.nr, keys += panel_bytes)
    for (int64_t i = 0; i < n_; i += kernel.mr)
      if (column < s_.columns[static_cast<size_t>(i)])
        kernel.tiles[std::min(kernel.mr, n_ - i) - 1](
            {s_.queries.data() + i * query_stride_ * a_bytes, query_stride_, keys, k,
             scores + i * stride + column, stride, false});
}

void QueryTile::score(Panels block, const Mask& mask) {
  set_columns(mask);
  score_columns(block.keys, s_.scores.data(), score_stride());
}

void QueryTile::score_block(Panels block, int64_t n_keys, float* scores, int64_t stride) {
  set_columns({.n_keys = n_keys, .end = n_keys});
  score_columns(block.keys, scores, stride);
}

void QueryTile::visit_scaled(Panels block, const Mask& mask, const RowScales& scales) {
  const auto multiply = [](const float* factors, int64_t begin, int64_t end, float* row) {
    for (int64_t j = begin; j < end; ++j) row[j] *= factors[j];
  };
  score(block, mask);
  for (int64_t i = 0; i < n_; ++i) {
    float* scores = s_.scores.data() + i * score_stride();
    const int64_t begin = mask.begin_of(i), end = mask.end_of(i);
    multiply(scales.keys, begin, end, scores);
    soften(i, mask, nullptr);
    multiply(scales.values, begin, end, scores);
    narrow_weights(i);
  }
  mix(block);
}

// Caps and masks one row of scores, takes it through the softmax and corrects the earlier sums.
void QueryTile::soften(int64_t i, const Mask& mask, const float* counts) {
  float* scores = s_.scores.data() + i * score_stride();
  const int64_t columns = s_.columns[static_cast<size_t>(i)];
  if (cap_ > 0) primitives::soft_cap(cap_, columns, scores);
  std::fill(scores, scores + std::min(mask.begin_of(i), columns), -INFINITY);
  std::fill(scores + mask.end_of(i), scores + columns, -INFINITY);
  const float correction =
      primitives::softmax_step(scale_, columns, scores, s_.state[static_cast<size_t>(i)], counts);
  if (correction != 1.0f)
    primitives::scale(correction, shape_.padded_dim, s_.sums.data() + i * shape_.padded_dim);
}

// Weights in the dtype of the kernel.
void QueryTile::narrow_weights(int64_t i) {
  if (shape_.kernel.a_dtype == DType::kBF16)
    primitives::narrow(s_.scores.data() + i * score_stride(), s_.columns[static_cast<size_t>(i)],
                       reinterpret_cast<BFloat16*>(s_.weights.data()) + i * score_stride());
}

void QueryTile::mix(Panels block) {
  const gemm::Kernel& kernel = shape_.kernel;
  const int64_t a_bytes = element_bytes(kernel.a_dtype);
  const int64_t panel_bytes = shape_.value_bytes / (shape_.padded_dim / kernel.nr);
  const auto* weights = kernel.a_dtype == DType::kF32
                            ? reinterpret_cast<const std::byte*>(s_.scores.data())
                            : s_.weights.data();
  const gemm::UsedKernel used(kernel);
  for (int64_t column = 0; column < shape_.padded_dim;
       column += kernel.nr, block.values += panel_bytes)
    for (int64_t i = 0; i < n_; i += kernel.mr)
      kernel.tiles[std::min(kernel.mr, n_ - i) - 1](
          {weights + i * score_stride() * a_bytes, score_stride(), block.values,
           kernel.padded_k(s_.columns[static_cast<size_t>(i)]),
           s_.sums.data() + i * shape_.padded_dim + column, shape_.padded_dim, true});
}

void QueryTile::store(const Tensor& out, int64_t row, int64_t head) {
  const int64_t hd = shape_.head_dim;
  for (int64_t i = 0; i < n_; ++i) {
    float* sums = s_.sums.data() + i * shape_.padded_dim;
    primitives::scale(1.0f / s_.state[static_cast<size_t>(i)].total, hd, sums);
    if (out.dtype() == DType::kBF16)
      primitives::narrow(sums, hd, out.row<BFloat16>(row + i) + head * hd);
    else
      std::memcpy(out.row<float>(row + i) + head * hd, sums,
                  static_cast<size_t>(hd) * sizeof(float));
  }
}

}  // namespace sluice::impl::cpu::attention
