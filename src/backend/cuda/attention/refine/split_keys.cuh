// The keys of a segment as split.cuh takes them: bf16 in shared memory on tensor cores, or rows of
// any dtype and size in global memory.

#pragma once

#include "backend/cuda/attention/refine/split.cuh"
#include "backend/cuda/mma.cuh"

namespace sluice::cuda::refine {

constexpr uint32_t kOnes = 0x3f803f80u;  // two bf16

// Calls use(row, unit) for the units of 16 bytes of n rows, shared out to n_threads threads.
template <typename Use>
__device__ void for_units(int n_rows, int n_units, int thread, int n_threads, const Use& use) {
  const int shift = 32 - __clz(n_units - 1);  // a row takes a power of two of threads
  const int unit = thread & ((1 << shift) - 1);
  if (unit >= n_units) return;
  for (int row = thread >> shift; row < n_rows; row += n_threads >> shift) use(row, unit);
}

// Rows by place; head_dim is a multiple of 16. The stride is an odd number of 16-byte units, so
// that a column of 8 rows lies in different banks.
struct SharedKeys {
  __nv_bfloat16* data;  // (n_rows, stride)
  int stride;

  static __host__ __device__ int stride_of(int head_dim) { return head_dim + 8; }
  __device__ float at(const Split&, int place, int i) const {
    return __bfloat162float(data[place * stride + i]);
  }
  __device__ uint4* unit(int place, int column) const {
    return reinterpret_cast<uint4*>(data + place * stride + column * 8);
  }
  // The lane's row of 16 rows that load_matrices takes: row_of(i) tells the place of row i.
  template <typename RowOf>
  __device__ const __nv_bfloat16* tile(const RowOf& row_of) const {
    return data + row_of(lane_id() % 16) * stride + lane_id() / 16 * 8;
  }
  __device__ const __nv_bfloat16* page_tile(int page) const {
    return tile([&](int row) { return page * kPage + row; });
  }
  __device__ void square(const Split& s) const;
  __device__ void sum(const Split& s) const;
  __device__ void project(const Split& s) const;
  __device__ void step(const Split& s) const;
  __device__ void permute(const Split& s) const;
};

// Squared norms of the rows of a tile, the diagonal of its Gram matrix: the lane's row is that of
// diagonal_row(), or it has none: -1.
__device__ inline int diagonal_row() {
  const int lane = lane_id(), g = lane / 4, t = lane % 4;
  return t == g / 2 ? g : -1;
}
// Of rows diagonal_row() and diagonal_row() + 8.
__device__ inline float2 tile_squares(const __nv_bfloat16* tile, int head_dim) {
  float upper[4] = {}, lower[4] = {};
#pragma unroll 8
  for (int k = 0; k < head_dim; k += 16) {
    uint32_t a[4];
    load_matrices(a, tile + k);
    mma_bf16(upper, a, a[0], a[2]);
    mma_bf16(lower, a, a[1], a[3]);
  }
  const bool odd = lane_id() / 4 % 2 != 0;
  return make_float2(odd ? upper[1] : upper[0], odd ? lower[3] : lower[2]);
}

// Calls use(k, c) for every 16 columns k of a tile: c[0] + c[1] is the weighted sum of column
// k + lane / 4, and c[2] + c[3] that of column k + lane / 4 + 8. b: weights by row, as right
// operand, of which neighbouring columns are two parts.
template <typename Use>
__device__ void for_tile_sums(const __nv_bfloat16* tile, int head_dim, const uint32_t (&b)[2],
                              const Use& use) {
#pragma unroll 8
  for (int k = 0; k < head_dim; k += 16) {
    uint32_t a[4];
    load_matrices_transposed(a, tile + k);
    const uint32_t turned[4] = {a[0], a[2], a[1], a[3]};
    float c[4] = {};
    mma_bf16(c, turned, b[0], b[1]);
    use(k, c);
  }
}
__device__ inline void put_page_sums(const Split& s, int page, const __nv_bfloat16* tile,
                                     const uint32_t (&b)[2]) {
  float* to = s.sums + page * s.width + lane_id() / 4;
  const bool stores = lane_id() % 4 == 0;
  for_tile_sums(tile, s.head_dim, b, [&](int k, const float(&c)[4]) {
    if (!stores) return;
    to[k] = c[0] + c[1];
    to[k + 8] = c[2] + c[3];
  });
}

// Deviations of rows lane / 4 and lane / 4 + 8 of a page along its group's vector: (16, head_dim) x
// (head_dim, 8). Columns are the parts of the vector, twice; columns 3 and 7 count for nothing.
__device__ inline float2 page_deviations(const Split& s, int page, const __nv_bfloat16* tile) {
  const int lane = lane_id(), t = lane % 4, group = s.groups->number[page];
  const __nv_bfloat16* vector =
      s.vector(group) + min(lane / 4 % 4, kParts - 1) * s.part_stride + 4 * t;
  float c[2][4] = {};
#pragma unroll 4
  for (int k = 0; k < s.head_dim; k += 32) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (k + 16 * i >= s.head_dim) continue;
      uint32_t a[4];
      load_matrices(a, tile + k + 16 * i);
      const uint2 b = *reinterpret_cast<const uint2*>(vector + k + 16 * i);
      mma_bf16(c[i], a, b.x, b.y);
    }
  }
  const bool last = t % 2 != 0;
  float upper = c[0][0] + c[1][0] + (last ? 0.0f : c[0][1] + c[1][1]);
  float lower = c[0][2] + c[1][2] + (last ? 0.0f : c[0][3] + c[1][3]);
  upper += __shfl_xor_sync(kAllLanes, upper, 1);
  lower += __shfl_xor_sync(kAllLanes, lower, 1);
  return make_float2(deviation_of(s, group, upper), deviation_of(s, group, lower));
}

// Two weights as a right operand: even columns have their bf16 values, odd ones what these leave.
// Together they have 16 bits, which is enough for a step that the next one repeats.
__device__ inline uint32_t weight_parts(float first, float second) {
  const uint32_t high = narrowed(first, second);
  const float2 rest = remainder_of(make_float2(first, second), high);
  return lane_id() / 4 % 2 == 0 ? high : narrowed(rest.x, rest.y);
}

// All of these take a warp per page.
__device__ inline void SharedKeys::square(const Split& s) const {
  for (int page = warp_id(); page < s.n_pages; page += split_warps()) {
    const float2 squares = tile_squares(page_tile(page), s.head_dim);
    const int row = diagonal_row();
    if (row < 0) continue;
    s.squares()[page * kPage + row] = squares.x;
    s.squares()[page * kPage + row + 8] = squares.y;
  }
}
__device__ inline void SharedKeys::sum(const Split& s) const {
  for (int page = warp_id(); page < s.n_pages; page += split_warps())
    if (s.groups->count[page] > 1)
      put_page_sums(s, page, page_tile(page),
                    {lane_id() / 4 % 2 == 0 ? kOnes : 0u, lane_id() / 4 % 2 == 0 ? kOnes : 0u});
}
__device__ inline void SharedKeys::project(const Split& s) const {
  const int g = lane_id() / 4, t = lane_id() % 4;
  for (int page = warp_id(); page < s.n_pages; page += split_warps()) {
    if (s.groups->count[page] < 2) continue;
    const float2 x = page_deviations(s, page, page_tile(page));
    if (t < 2) s.along[page * kPage + g + 8 * t] = t == 0 ? x.x : x.y;
  }
}
__device__ inline void SharedKeys::step(const Split& s) const {
  const int t = lane_id() % 4;
  for (int page = warp_id(); page < s.n_pages; page += split_warps()) {
    if (s.groups->count[page] < 2) continue;
    const __nv_bfloat16* tile = page_tile(page);
    const float2 x = page_deviations(s, page, tile);
    // Rows 2 t and 2 t + 1, and those 8 further.
    const auto of_row = [&](float mine, int row) { return __shfl_sync(kAllLanes, mine, 4 * row); };
    const uint32_t b[2] = {weight_parts(of_row(x.x, 2 * t), of_row(x.x, 2 * t + 1)),
                           weight_parts(of_row(x.y, 2 * t), of_row(x.y, 2 * t + 1))};
    put_page_sums(s, page, tile, b);
  }
}

// Through registers, some columns of 16 bytes at a time. Threads of a row lie side by side.
__device__ inline void SharedKeys::permute(const Split& s) const {
  constexpr int kHeld = 4;
  const int n_units = s.head_dim / 8, thread = static_cast<int>(threadIdx.x);
  const int shift = min(31 - __clz(split_threads() * kHeld / s.n_rows), 5), columns = 1 << shift;
  for (int first = 0; first < n_units; first += columns) {
    const int column = first + thread % columns;
    uint4 held[kHeld];
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int place = (thread + k * split_threads()) >> shift;
      if (place < s.n_rows && column < n_units)
        held[k] = *unit(static_cast<int>(s.order()[place] & 0xffffu), column);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int place = (thread + k * split_threads()) >> shift;
      if (place < s.n_rows && column < n_units) *unit(place, column) = held[k];
    }
  }
}

// Rows of the segment, which stay where they are.
template <typename T>
struct GlobalKeys {
  const T* data;  // (n_rows, head_dim)
  int64_t stride;

  __device__ float at(const Split& s, int place, int i) const {
    return i < s.head_dim ? static_cast<float>(data[s.rows()[place] * stride + i]) : 0.0f;
  }
  // A warp per row.
  __device__ void square(const Split& s) const {
    for (int row = warp_id(); row < s.n_rows; row += split_warps()) {
      float sum = 0;
      for (int i = lane_id(); i < s.head_dim; i += 32) sum += at(s, row, i) * at(s, row, i);
      sum = warp_sum(sum);
      if (lane_id() == 0) s.squares()[row] = sum;
    }
  }
  __device__ void project(const Split& s) const {
    for (int place = warp_id(); place < s.n_rows; place += split_warps()) {
      if (s.groups->count[place / kPage] < 2) continue;
      const int group = s.groups->number[place / kPage];
      float dot = 0;
      for (int i = lane_id(); i < s.head_dim; i += 32)
        dot += at(s, place, i) * vector_at(s, group, i);
      dot = warp_sum(dot);
      if (lane_id() == 0) s.along[place] = deviation_of(s, group, dot);
    }
  }
  // A thread per page and dimension.
  template <typename WeightOf>
  __device__ void weighted(const Split& s, const WeightOf& weight) const {
    for (int item = static_cast<int>(threadIdx.x); item < s.n_pages * s.width;
         item += split_threads()) {
      const int page = item / s.width, i = item % s.width;
      float sum = 0;
      for (int place = page * kPage; place < (page + 1) * kPage; ++place)
        sum += weight(place) * at(s, place, i);
      s.sums[item] = sum;
    }
  }
  __device__ void sum(const Split& s) const {
    weighted(s, [](int) { return 1.0f; });
  }
  __device__ void step(const Split& s) const {
    project(s);
    __syncthreads();
    weighted(s, [&](int place) { return s.along[place]; });
  }
  __device__ void permute(const Split&) const {}
};

}  // namespace sluice::cuda::refine
