// What attention of mode `keys` on Hopper leaves: rows of the output and log sums. Only a few
// instructions to a row, for the tensor cores wait meanwhile.

#pragma once

#include "backend/cuda/attention/dense/tile.cuh"
#include "backend/cuda/attention/keys/items.cuh"

namespace sluice::impl::cuda::keys::hopper {

using namespace dense;

// Four lanes side by side hold row t of a 4 x 4 matrix each and get column t.
__device__ inline void transpose(uint32_t (&x)[4]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const auto exchange = [&](uint32_t& low, uint32_t& high, int step) {
    const bool upper = (t & step) != 0;
    const uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? low : high, step);
    (upper ? low : high) = other;
  };
  exchange(x[0], x[1], 1);
  exchange(x[2], x[3], 1);
  exchange(x[0], x[2], 2);
  exchange(x[1], x[3], 2);
}

// Stores columns [column, column + 8 kN) of a row, 16 bytes to a lane at a time; nothing where `to`
// is null. half: which of the sums are this row's.
template <int kN>
__device__ void store_row(const KeysView& view, __nv_bfloat16* to, int column, int half,
                          const float (&sums)[kN][4], float share) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int n = 0; n < kN; n += 4) {
    uint32_t x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      x[i] = narrowed(sums[n + i][2 * half] * share, sums[n + i][2 * half + 1] * share);
    transpose(x);
    const int first = column + 8 * (n + t);
    if (to != nullptr && first < view.heads.head_dim)
      *reinterpret_cast<uint4*>(to + first) = make_uint4(x[0], x[1], x[2], x[3]);
  }
}

// The two rows of queries of a thread, `row` and row + 8.
template <int kParts, int kN>
__device__ void store_rows(const KeysView& view, const Group& group, const Item& item, int row,
                           const float (&sums)[kParts][kN][4], Softmax& softmax) {
  add_lanes(softmax);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = row + 8 * half;
    const bool exists = r < item.n * group.n;
    if (exists && threadIdx.x % 4 == 0 && view.queries.log_sums != nullptr) {
      const int token = group.token(r);
      store_log_sum(view, item.row + token, item.kv_head * group.n + r - token * group.n,
                    softmax.largest[half] * view.heads.scale + logf(softmax.total[half]));
    }
    const float share = reciprocal_fast(softmax.total[half]);
    auto* to = exists ? reinterpret_cast<__nv_bfloat16*>(view.queries.out) +
                            group.at(item, r, view.queries.out_stride, view.heads.head_dim)
                      : nullptr;
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      store_row(view, to, part * 8 * kN, half, sums[part], share);
  }
}

}  // namespace sluice::impl::cuda::keys::hopper
