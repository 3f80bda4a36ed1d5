// Attention of one query: the keys of a head that a block reads, and a softmax over them in
// registers. kLanes lanes hold a key, 8 columns each.

#pragma once

#include "backend/cuda/attention/dense/parts.cuh"
#include "backend/cuda/primitives/rotary.cuh"

namespace sluice::impl::cuda::dense::one {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;

// A softmax so far: weighted sums of this lane's 8 columns, the largest score and the weights' sum.
struct Sums {
  float values[8] = {};
  float largest = -INFINITY, total = 0;

  // What one with a larger score leaves of this one; 0 where it has seen nothing.
  __device__ void scale_to(float other) {
    const float kept = largest == -INFINITY ? 0.0f : exp2_fast(largest - other);
    for (float& value : values) value *= kept;
    total *= kept;
    largest = other;
  }
};

// Of the token whose query it is, where they are not stored yet.
struct NextToken {
  const std::byte *keys, *values;  // (n_batch, n_kv_heads, head_dim), or null: all are stored
  int64_t key_stride, value_stride;
  std::byte *key_cache, *value_cache;
  Rotation rotation;  // of queries and keys
};

// The keys of a block, and where this lane's columns of them are.
template <int kLanes>
struct BlockKeys {
  int64_t head, batch;
  int64_t n_keys;      // of the head
  int64_t begin, end;  // of the block, stored ones
  int lane, column;
  bool has_next, has_column;  // has_next: the token that is not stored yet is the block's too
  int64_t cached;             // bytes from the cache to this lane's columns of the head's first key
  const std::byte *keys, *values;  // this lane's columns of the head's first key and value

  __device__ __forceinline__ BlockKeys(const AttendView& view, int64_t n_all, int n_splits,
                                       bool adds)
      : head(blockIdx.y), batch(blockIdx.z), n_keys(n_all) {
    const int64_t split = blockIdx.x, own = batch * view.n_heads + head;
    lane = static_cast<int>(threadIdx.x) % 32;
    column = lane % kLanes * 8;
    has_column = column < view.head_dim;
    cached = 2 * (own * view.capacity * view.head_dim + column);
    keys = view.keys + cached;
    values = view.values + cached;
    const int64_t seen = view.window > 0 && n_keys > view.window ? n_keys - view.window : 0;
    begin = seen + (n_keys - seen) * split / n_splits;
    has_next = adds && split == n_splits - 1;
    end = has_next ? n_keys - 1 : seen + (n_keys - seen) * (split + 1) / n_splits;
  }
};

// This lane's columns of the query, and what scores are multiplied by: scale * log2(e).
struct Query {
  float columns[8], factor;
};

// The product of query and key, in each of the key's lanes.
template <int kLanes>
__device__ __forceinline__ float product_of(const Query& query, const uint4& key) {
  float wide[8], product = 0;
  widen_eight(key, wide);
#pragma unroll
  for (int c = 0; c < 8; ++c) product += query.columns[c] * wide[c];
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2)
    product += __shfl_xor_sync(0xffffffffu, product, step);
  return product;
}

// A step of a warp: kLoads keys and values of each group of lanes, in registers.
template <int kLanes, int kLoads>
struct Step {
  static constexpr int kAtOnce = 32 / kLanes;     // keys of a load
  static constexpr int kKeys = kAtOnce * kLoads;  // of a warp
  static constexpr int kBlock = kWarps * kKeys;   // of a block
  uint4 k[kLoads], v[kLoads];

  __device__ __forceinline__ static int64_t key_of(const BlockKeys<kLanes>& block, int64_t first,
                                                   int i) {
    return first + i * kAtOnce + block.lane / kLanes;
  }
  __device__ __forceinline__ void load(const AttendView& view, const BlockKeys<kLanes>& block,
                                       int64_t first) {
    const uint4 zeros = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int64_t key = key_of(block, first, i), at = 2 * key * view.head_dim;
      const bool exists = key < block.end && block.has_column;
      k[i] = exists ? *reinterpret_cast<const uint4*>(block.keys + at) : zeros;
      v[i] = exists ? *reinterpret_cast<const uint4*>(block.values + at) : zeros;
    }
  }
  // The warp's keys of a later step: so they lie in the second-level cache by then.
  __device__ __forceinline__ static void prefetch(const AttendView& view,
                                                  const BlockKeys<kLanes>& block, int64_t later) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (block.lane % 8 != 0 || key_of(block, later, i) >= block.end || !block.has_column)
        continue;  // a line to eight lanes
      const int64_t at = 2 * key_of(block, later, i) * view.head_dim;
      asm volatile("prefetch.global.L2 [%0];\n" ::"l"(block.keys + at));
      asm volatile("prefetch.global.L2 [%0];\n" ::"l"(block.values + at));
    }
  }
  // Takes the keys into the softmax.
  __device__ __forceinline__ void add_to(Sums& state, const BlockKeys<kLanes>& block, int64_t first,
                                         const Query& query) const {
    float scores[kLoads], largest = state.largest;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      scores[i] = product_of<kLanes>(query, k[i]);
      scores[i] = key_of(block, first, i) < block.end ? scores[i] * query.factor : -INFINITY;
      largest = fmaxf(largest, scores[i]);
    }
    if (largest == -INFINITY) return;  // this group of lanes has no key here; shuffles are done
    state.scale_to(largest);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const float weight = exp2_fast(scores[i] - largest);
      float wide[8];
      widen_eight(v[i], wide);
#pragma unroll
      for (int c = 0; c < 8; ++c) state.values[c] += weight * wide[c];
      state.total += weight;
    }
  }
};

template <int kLanes>
__device__ __forceinline__ Query load_query(const AttendView& view, const BlockKeys<kLanes>& block,
                                            const Rotation& rotation) {
  Query query;
  const std::byte* from =
      view.queries + 2 * (block.batch * view.query_stride + block.head * view.head_dim);
  widen_eight(block.has_column ? read_rotated(from, block.column, rotation, block.n_keys - 1)
                               : make_uint4(0, 0, 0, 0),
              query.columns);
  query.factor = view.scale * kLog2E;
  return query;
}

// Stores the token that is not stored yet and begins a warp's softmax with it.
template <int kLanes>
__device__ __forceinline__ void add_next_token(Sums& state, const AttendView& view,
                                               const NextToken& next,
                                               const BlockKeys<kLanes>& block, const Query& query) {
  uint4 key = make_uint4(0, 0, 0, 0), value = key;
  if (block.has_column) {
    const int64_t in_row = block.head * view.head_dim;
    key = read_rotated(next.keys + 2 * (block.batch * next.key_stride + in_row), block.column,
                       next.rotation, block.n_keys - 1);
    value = *reinterpret_cast<const uint4*>(
        next.values + 2 * (block.batch * next.value_stride + in_row + block.column));
    if (block.lane < kLanes) {
      const int64_t at = block.cached + 2 * (block.n_keys - 1) * view.head_dim;
      *reinterpret_cast<uint4*>(next.key_cache + at) = key;
      *reinterpret_cast<uint4*>(next.value_cache + at) = value;
    }
  }
  const float product = product_of<kLanes>(query, key);
  if (block.lane < kLanes) {
    widen_eight(value, state.values);
    state.largest = product * query.factor;
    state.total = 1;
  }
}

}  // namespace sluice::impl::cuda::dense::one
