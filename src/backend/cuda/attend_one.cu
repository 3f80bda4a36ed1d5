// Attention of one query to a sequence, whose heads have keys of their own: decoding. The keys of a
// head are split over blocks, and a block's over groups of lanes, each of which keeps a softmax of
// its own, so that keys and values are read as fast as memory gives them. The block that is last to
// finish a head puts its parts together.

#include <algorithm>

#include "backend/cuda/attend_tile.cuh"
#include "backend/cuda/early.cuh"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kLoads = 4;   // of keys, and as many of values, under way in a lane at once
constexpr int kBlocks = 3;  // of one multiprocessor

// What a block leaves of a head. largest is that of scores times log2(e).
struct Parts {
  float* sums;     // (n_batch, n_heads, n_splits, head_dim)
  float* largest;  // (n_batch, n_heads, n_splits)
  float* total;    // the same shape
  int32_t* done;   // (n_batch, n_heads) blocks, zero before and after
  int32_t n_splits;
};

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

// kLanes lanes hold a key, 8 columns each.
template <int kLanes>
__global__ void __launch_bounds__(kThreads, kBlocks)
    one_query(AttendView view, FirstPosition position, Parts parts) {
  constexpr int kAtOnce = 32 / kLanes, kStep = kAtOnce * kLoads;  // keys of a load, and of a warp
  __shared__ float sums[kWarps][8 * kLanes], largests[kWarps], totals[kWarps];
  __shared__ bool is_last;
  let_next_begin();
  wait_for_earlier();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t split = blockIdx.x, head = blockIdx.y, batch = blockIdx.z;
  const int64_t column = lane % kLanes * 8, own = batch * view.n_heads + head;
  const bool has_column = column < view.head_dim;
  const std::byte* keys = view.keys + 2 * (own * view.capacity * view.head_dim + column);
  const std::byte* values = view.values + 2 * (own * view.capacity * view.head_dim + column);
  const uint4 zeros = make_uint4(0, 0, 0, 0);

  float query[8];
  widen_eight(has_column ? *reinterpret_cast<const uint4*>(
                               view.queries +
                               2 * (batch * view.query_stride + head * view.head_dim + column))
                         : zeros,
              query);
  const int64_t n_keys = position.get() + 1;
  const int64_t seen = view.window > 0 && n_keys > view.window ? n_keys - view.window : 0;
  const int64_t begin = seen + (n_keys - seen) * split / parts.n_splits;
  const int64_t end = seen + (n_keys - seen) * (split + 1) / parts.n_splits;
  const float factor = view.scale * kLog2E;
  Sums state;
  for (int64_t first = begin + warp * kStep; first < end; first += kWarps * kStep) {
    uint4 k[kLoads], v[kLoads];
    bool exists[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int64_t key = first + i * kAtOnce + lane / kLanes;
      exists[i] = key < end;
      const int64_t at = 2 * key * view.head_dim;
      k[i] = exists[i] && has_column ? *reinterpret_cast<const uint4*>(keys + at) : zeros;
      v[i] = exists[i] && has_column ? *reinterpret_cast<const uint4*>(values + at) : zeros;
    }
    float scores[kLoads], wide[8], largest = state.largest;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      widen_eight(k[i], wide);
      scores[i] = 0;
#pragma unroll
      for (int c = 0; c < 8; ++c) scores[i] += query[c] * wide[c];
#pragma unroll
      for (int step = kLanes / 2; step > 0; step /= 2)
        scores[i] += __shfl_xor_sync(0xffffffffu, scores[i], step);
      scores[i] = exists[i] ? scores[i] * factor : -INFINITY;
      largest = fmaxf(largest, scores[i]);
    }
    if (largest == -INFINITY) continue;  // this group of lanes has no key here; shuffles are done
    state.scale_to(largest);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const float weight = exp2_fast(scores[i] - largest);
      widen_eight(v[i], wide);
#pragma unroll
      for (int c = 0; c < 8; ++c) state.values[c] += weight * wide[c];
      state.total += weight;
    }
  }

  // The groups of a warp, then the warps.
#pragma unroll
  for (int step = kLanes; step < 32; step *= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, state.largest, step);
    const float largest = fmaxf(state.largest, other);
    if (largest != -INFINITY) state.scale_to(largest);
    for (float& value : state.values) value += __shfl_xor_sync(0xffffffffu, value, step);
    state.total += __shfl_xor_sync(0xffffffffu, state.total, step);
  }
  if (lane < kLanes)
    for (int c = 0; c < 8; ++c) sums[warp][column + c] = state.values[c];
  if (lane == 0) {
    largests[warp] = state.largest;
    totals[warp] = state.total;
  }
  __syncthreads();
  float largest = -INFINITY, total = 0, sum = 0;
  for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, largests[w]);
  const int mine = static_cast<int>(threadIdx.x);  // a column
  for (int w = 0; w < kWarps && largest != -INFINITY; ++w) {
    const float part = exp2_fast(largests[w] - largest);
    total += totals[w] * part;
    if (mine < 8 * kLanes) sum += sums[w][mine] * part;
  }

  const bool has_mine = mine < view.head_dim;
  const RowsView out{view.out, view.out_stride, true};
  if (parts.n_splits == 1) {
    const float value[1] = {sum / total};
    if (has_mine) store<1>(out, batch, head * view.head_dim + mine, value);
    return;
  }
  const int64_t first_part = own * parts.n_splits;
  if (has_mine) parts.sums[(first_part + split) * view.head_dim + mine] = sum;
  if (mine == 0) {
    parts.largest[first_part + split] = largest;
    parts.total[first_part + split] = total;
  }
  __threadfence();
  __syncthreads();
  if (mine == 0) is_last = atomicAdd(parts.done + own, 1) == parts.n_splits - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  if (mine == 0) parts.done[own] = 0;
  largest = -INFINITY;
  for (int i = 0; i < parts.n_splits; ++i)
    largest = fmaxf(largest, __ldcg(parts.largest + first_part + i));
  total = sum = 0;
  for (int i = 0; i < parts.n_splits; ++i) {
    const float part = exp2_fast(__ldcg(parts.largest + first_part + i) - largest);
    total += __ldcg(parts.total + first_part + i) * part;
    if (has_mine) sum += __ldcg(parts.sums + (first_part + i) * view.head_dim + mine) * part;
  }
  const float value[1] = {sum / total};
  if (has_mine) store<1>(out, batch, head * view.head_dim + mine, value);
}

template <int kLanes>
void launch(Context& context, const AttendView& view) {
  // As many as there is room for at one time, unless that leaves less than a step to a warp.
  const int64_t heads = view.n_batch * view.n_heads;
  const auto splits_of = [&](int64_t n_keys) {
    const int64_t most = ceil_div(n_keys, kWarps * kLoads * (32 / kLanes));
    return std::clamp<int64_t>(int64_t{kBlocks} * context.multiprocessors() / heads, 1, most);
  };
  // What is recorded must do for every position, and finds its memory there. So its sums may have
  // another order than those of the same step that is not.
  const FirstPosition position = first_position_of(context, view.first_position);
  const int64_t most_parts = heads * splits_of(view.capacity);
  const int64_t n_splits = splits_of(position.recorded == nullptr ? view.n_keys() : view.capacity);
  const int64_t n_parts = heads * n_splits;
  Parts parts{};
  parts.sums = static_cast<float*>(context.scratch(
      checked_mul(checked_mul(most_parts, view.head_dim + 2), int64_t{sizeof(float)})));
  parts.largest = parts.sums + n_parts * view.head_dim;
  parts.total = parts.largest + n_parts;
  parts.done = context.zeros(heads);
  parts.n_splits = static_cast<int32_t>(n_splits);
  launch_early(context, "one_query", one_query<kLanes>,
               dim3(static_cast<unsigned>(n_splits), static_cast<unsigned>(view.n_heads),
                    static_cast<unsigned>(view.n_batch)),
               kThreads, view, position, parts);
}

}  // namespace

void attend_one(Context& context, const AttendView& view) {
  SLUICE_CHECK(view.n_tokens == 1 && view.group() == 1);
  if (view.head_dim <= 64) return launch<8>(context, view);
  if (view.head_dim <= 128) return launch<16>(context, view);
  launch<32>(context, view);
}

}  // namespace sluice::cuda
