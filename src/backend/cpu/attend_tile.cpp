#include "backend/cpu/attend_tile.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "backend/cpu/rows.h"

namespace sluice::cpu {
namespace {

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// put_row with the kernel's kq known, so that its short runs need no loop.
template <int kQ, typename T>
void put_runs(const TileShape& shape, Panels panels, int64_t index, const T* key, const T* value) {
  const GemmKernel& kernel = shape.kernel;
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

// C (n x columns) = or += A B over the panels of one block.
struct Product {
  const std::byte* a;
  int64_t a_stride;
  const std::byte* panels;
  int64_t panel_bytes;
  int64_t k, n, columns;
  float* c;
  int64_t c_stride;
  bool accumulate;
};
void multiply(const GemmKernel& kernel, const Product& p) {
  const int64_t a_bytes = element_bytes(kernel.a_dtype);
  for (int64_t panel = 0; panel < p.columns / kernel.nr; ++panel)
    for (int64_t i = 0; i < p.n; i += kernel.mr)
      kernel.tiles[std::min(kernel.mr, p.n - i) - 1](
          {p.a + i * p.a_stride * a_bytes, p.a_stride, p.panels + panel * p.panel_bytes,
           kernel.padded_k(p.k), p.c + i * p.c_stride + panel * kernel.nr, p.c_stride,
           p.accumulate});
}

}  // namespace

TileShape::TileShape(DType dtype, int64_t dim)
    : kernel(gemm_kernel(dtype)),
      head_dim(dim),
      padded_dim(round_up(dim, kernel.nr)),
      block_keys(round_up(128, kernel.nr)),
      block_queries(8 * kernel.mr),
      key_bytes(block_keys / kernel.nr * kernel.panel_elements(dim) *
                element_bytes(kernel.b_dtype)),
      value_bytes(padded_dim / kernel.nr * kernel.panel_elements(block_keys) *
                  element_bytes(kernel.b_dtype)) {}

template <typename T>
void put_row(const TileShape& shape, Panels panels, int64_t index, const T* key, const T* value) {
  SLUICE_CHECK(shape.kernel.kq == 1 || shape.kernel.kq == 4);
  if (shape.kernel.kq == 1)
    put_runs<1>(shape, panels, index, key, value);
  else
    put_runs<4>(shape, panels, index, key, value);
}
template void put_row(const TileShape&, Panels, int64_t, const float*, const float*);
template void put_row(const TileShape&, Panels, int64_t, const BFloat16*, const BFloat16*);

QueryTile::QueryTile(const TileShape& shape, float scale, TileScratch& scratch)
    : shape_(shape),
      scale_(scale),
      s_(scratch),
      query_stride_(shape.kernel.padded_k(shape.head_dim) + 16) {
  const auto rows = static_cast<size_t>(shape.block_queries);
  const auto a_bytes = static_cast<size_t>(element_bytes(shape.kernel.a_dtype));
  s_.queries.resize(rows * static_cast<size_t>(query_stride_) * a_bytes);
  s_.scores.resize(rows * static_cast<size_t>(score_stride()));
  if (shape.kernel.a_dtype != DType::kF32) s_.weights.resize(s_.scores.size() * a_bytes);
  s_.sums.resize(rows * static_cast<size_t>(shape.padded_dim));
  s_.state.resize(rows);
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
        widen(queries.row<BFloat16>(row + i) + head * hd, hd, to);
    }
  }
  std::fill(s_.sums.begin(), s_.sums.end(), 0.0f);
  std::fill(s_.state.begin(), s_.state.end(), SoftmaxState{-INFINITY, 0.0f});
}

void QueryTile::score(Panels block, int64_t columns) {
  const GemmKernel& kernel = shape_.kernel;
  multiply(kernel, {.a = s_.queries.data(),
                    .a_stride = query_stride_,
                    .panels = block.keys,
                    .panel_bytes = shape_.key_bytes / (shape_.block_keys / kernel.nr),
                    .k = shape_.head_dim,
                    .n = n_,
                    .columns = columns,
                    .c = s_.scores.data(),
                    .c_stride = score_stride(),
                    .accumulate = false});
}

// Masks one row of scores, takes it through the softmax and corrects the earlier sums.
void QueryTile::soften(int64_t i, int64_t columns, SeenKeys seen) {
  float* scores = s_.scores.data() + i * score_stride();
  std::fill(scores, scores + std::min(seen.begin, columns), -INFINITY);
  std::fill(scores + std::min(seen.end, columns), scores + columns, -INFINITY);
  const float correction =
      softmax_step(scale_, columns, scores, s_.state[static_cast<size_t>(i)], seen.counts);
  if (correction != 1.0f)
    scale(correction, shape_.padded_dim, s_.sums.data() + i * shape_.padded_dim);
  if (shape_.kernel.a_dtype == DType::kBF16)
    narrow(scores, columns, reinterpret_cast<BFloat16*>(s_.weights.data()) + i * score_stride());
}

void QueryTile::mix(Panels block, int64_t columns) {
  const GemmKernel& kernel = shape_.kernel;
  multiply(kernel, {.a = kernel.a_dtype == DType::kF32
                             ? reinterpret_cast<const std::byte*>(s_.scores.data())
                             : s_.weights.data(),
                    .a_stride = score_stride(),
                    .panels = block.values,
                    .panel_bytes = shape_.value_bytes / (shape_.padded_dim / kernel.nr),
                    .k = columns,
                    .n = n_,
                    .columns = shape_.padded_dim,
                    .c = s_.sums.data(),
                    .c_stride = shape_.padded_dim,
                    .accumulate = true});
}

void QueryTile::store(const Tensor& out, int64_t row, int64_t head) {
  const int64_t hd = shape_.head_dim;
  for (int64_t i = 0; i < n_; ++i) {
    float* sums = s_.sums.data() + i * shape_.padded_dim;
    scale(1.0f / s_.state[static_cast<size_t>(i)].total, hd, sums);
    if (out.dtype() == DType::kBF16)
      narrow(sums, hd, out.row<BFloat16>(row + i) + head * hd);
    else
      std::memcpy(out.row<float>(row + i) + head * hd, sums,
                  static_cast<size_t>(hd) * sizeof(float));
  }
}

}  // namespace sluice::cpu
