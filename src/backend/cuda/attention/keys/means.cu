// Running means of clusters.

#include "backend/cuda/attention/keys/places.cuh"
#include "backend/cuda/runtime/dependent_launch.cuh"

namespace sluice::impl::cuda::keys {
namespace {

// Whether a head takes means, or what the representative has.
__device__ bool is_average(const HeadView& head, bool values) {
  const auto far = static_cast<FarKey>(head.far);
  return values ? far != FarKey::kOwn : far == FarKey::kCentroid;
}

// The mean of a cluster in the cache.
template <int kN, bool kBF16>
__device__ void load_before(const MeansArgs& args, const Columns& at, int32_t cluster,
                            float (&to)[kN]) {
  const int64_t d = args.head_dim, row = at.head * args.before.capacity + cluster;
  const std::byte* rows = at.values ? args.before.values : args.before.keys;
  load<kN>(ConstRowsView{rows, d, kBF16}, row, at.column, to);
  if (!kBF16) return;
  float rest[kN];
  load<kN>(rests_of(args.before, at.values, d), row, at.column, rest);
  for (int i = 0; i < kN; ++i) to[i] += rest[i];
}

// What rounding to bf16 leaves of numbers. Two are rounded together: one by one takes much longer.
template <int kN>
__device__ void keep_rest(float (&x)[kN]) {
  if constexpr (kN == 1) {
    x[0] -= __bfloat162float(__float2bfloat16_rn(x[0]));
  } else {
#pragma unroll
    for (int c = 0; c < kN; c += 2) {
      const float2 rounded = widened(narrowed(x[c], x[c + 1]));
      x[c] -= rounded.x;
      x[c + 1] -= rounded.y;
    }
  }
}

// What the members of a cluster before this pass add up to.
template <int kN, bool kBF16>
__device__ void load_sum_before(const MeansArgs& args, const Columns& at, int32_t cluster,
                                float (&to)[kN]) {
  load_before<kN, kBF16>(args, at, cluster, to);
  const auto count = static_cast<float>(args.counts_before[cluster]);
  for (int i = 0; i < kN; ++i) to[i] *= count;
}

// Sums of segments that their cluster goes on behind, (places / kSegment, columns): one at most
// begins among the places of a block. follows[block]: whether its cluster began before; -1: none.
template <int kN, bool kBF16>
__global__ void __launch_bounds__(kColumnThreads)
    segment_sums(const __grid_constant__ MeansArgs args, float* sums, int32_t* follows) {
  __shared__ int32_t found;
  launch_dependents();
  wait_on_dependency();
  const MembersView& members = args.members;
  const int64_t d = args.head_dim, width = args.n_kv_heads * d;
  if (threadIdx.x == 0) found = -1;
  __syncthreads();
  if (threadIdx.x < kSegment) {
    const int64_t p = int64_t{blockIdx.x} * kSegment + threadIdx.x;
    if (p + kSegment < members.n && (members.marked[p] & kBegins) != 0 &&
        (members.marked[p + kSegment] & (kBegins | kFirst)) == kBegins &&
        members.clusters[p] == members.clusters[p + kSegment])
      found = static_cast<int32_t>(p);
  }
  __syncthreads();
  const int64_t begin = found;
  const int32_t first_mark = begin < 0 ? 0 : members.marked[begin];
  if (blockIdx.y == 0 && threadIdx.x == 0)
    follows[blockIdx.x] = begin < 0 ? -1 : (first_mark & kFirst) != 0 ? 0 : 1;
  const int64_t flat = (int64_t{blockIdx.y} * kColumnThreads + threadIdx.x) * kN;
  if (begin < 0 || flat >= 2 * width) return;
  const Columns at = columns_at(flat, width, d);
  const HeadView head = args.heads[at.head];
  if (head.set != args.set || !is_average(head, at.values)) return;
  float sum[kN] = {};
  if ((first_mark & (kFirst | kOld)) == (kFirst | kOld))
    load_sum_before<kN, kBF16>(args, at, members.clusters[begin], sum);
  const int32_t* order = members.order + begin;
  read_rows<kN, kBF16>(
      0, static_cast<int>(kSegment), ColumnRows<kBF16>(args.tokens, at, d),
      [&](int i) { return row_code(args.tokens, members.first + order[i]); },
      [](int) { return true; },
      [&](int, const float(&x)[kN]) {
        for (int c = 0; c < kN; ++c) sum[c] += x[c];
      });
  for (int c = 0; c < kN; ++c) sums[int64_t{blockIdx.x} * 2 * width + flat + c] = sum[c];
}

// Each becomes the sum of its cluster from the beginning. A thread to a column.
__global__ void add_segments(int64_t n_blocks, int64_t n_columns, const int32_t* follows,
                             float* sums) {
  constexpr int kUnroll = 16;
  launch_dependents();
  wait_on_dependency();
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  int any = 0;
  for (int64_t i = threadIdx.x; i < n_blocks; i += blockDim.x) any |= follows[i] > 0 ? 1 : 0;
  if (__syncthreads_or(any) == 0 || column >= n_columns) return;
  float up_to = 0;
  for (int64_t first = 0; first < n_blocks; first += kUnroll) {
    int32_t follow[kUnroll];
    float x[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) follow[i] = first + i < n_blocks ? follows[first + i] : -1;
#pragma unroll
    for (int i = 0; i < kUnroll; ++i)
      x[i] = follow[i] >= 0 ? sums[(first + i) * n_columns + column] : 0.0f;
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (follow[i] < 0) continue;
      up_to = follow[i] == 0 ? x[i] : up_to + x[i];
      if (follow[i] != 0) sums[(first + i) * n_columns + column] = up_to;
    }
  }
}

// A block to the segments that begin among kSegment places, and to some columns, kN to a thread.
template <int kN, bool kBF16>
__global__ void __launch_bounds__(kColumnThreads, 8)
    means(const __grid_constant__ MeansArgs args, const float* sums) {
  __shared__ MemberPlaces places;
  launch_dependents();
  wait_on_dependency();
  const MembersView& members = args.members;
  const int64_t first_place = int64_t{blockIdx.x} * kSegment;
  places.look(members, args.tokens, first_place);
  const int64_t d = args.head_dim, width = args.n_kv_heads * d;
  const int64_t flat = (int64_t{blockIdx.y} * kColumnThreads + threadIdx.x) * kN;
  if (flat >= 2 * width) return;
  const Columns at = columns_at(flat, width, d);
  const HeadView head = args.heads[at.head];
  if (head.set != args.set) return;
  const bool average = is_average(head, at.values);
  const ColumnRows<kBF16> rows(args.tokens, at, d);
  const auto load_token = [&](int32_t token, float(&x)[kN]) {
    const int32_t code = row_code(args.tokens, members.first + token);
    load<kN>(ConstRowsView{rows.row(code), 0, kBF16}, 0, 0, x);
  };
  constexpr int64_t kBytes = kBF16 ? 2 : 4;
  std::byte* to =
      (at.values ? args.values : args.keys) + (at.head * members.n * d + at.column) * kBytes;
  auto row_bytes = static_cast<uint32_t>(d * kBytes);
  asm volatile("" : "+l"(to), "+r"(row_bytes));  // as in ColumnRows
  const auto store_mean = [&](int32_t token, const float(&x)[kN]) {
    std::byte* row = to + uint64_t{static_cast<uint32_t>(token)} * row_bytes;
    store<kN>(RowsView{row, 0, kBF16}, 0, 0, x);
  };

  float sum[kN];            // or, where nothing is averaged, what the representative has
  int32_t first_token = 0;  // of the cluster
  const auto begin_segment = [&](int64_t p, int32_t marked, const float(&x)[kN]) {
    const bool first = (marked & kFirst) != 0;
    if (first) first_token = token_of(marked);
    for (int c = 0; c < kN; ++c) sum[c] = 0;
    if (!average && first && (marked & kOwnFirst) != 0) {
      for (int c = 0; c < kN; ++c) sum[c] = x[c];
    } else if (average && first && (marked & kOld) == 0) {
      return;
    } else {  // rarely: something is to be looked up
      const int32_t cluster = members.clusters[p];
      if (!first) first_token = static_cast<int32_t>(members.first_new[cluster] - members.first);
      if (!average && (marked & kOld) != 0) return load_before<kN, kBF16>(args, at, cluster, sum);
      if (!average) return load_token(members.own[cluster], sum);
      if (first) return load_sum_before<kN, kBF16>(args, at, cluster, sum);
      const float* before = sums + (p / kSegment - 1) * 2 * width + at.flat;
      for (int c = 0; c < kN; ++c) sum[c] = before[c];
    }
  };
  const auto take = [&](int64_t p, int32_t marked, float of_all, const float(&x)[kN]) {
    const int32_t token = token_of(marked);
    if ((marked & kBegins) != 0) begin_segment(p, marked, x);
    if (average)
      for (int c = 0; c < kN; ++c) sum[c] += x[c];
    const bool last = (marked & kLast) != 0;
    const bool alone = (marked & (kFirst | kOwnFirst)) == (kFirst | kOwnFirst);
    if ((marked & kSeen) == 0 || (alone && !last)) return;
    const float share = average ? of_all : 1.0f;
    float mean[kN];
    for (int c = 0; c < kN; ++c) mean[c] = sum[c] * share;
    store_mean(token, mean);
    if (!last || !kBF16) return;
    keep_rest(mean);
    if ((marked & kOld) != 0)
      store<kN>(RowsView{at.values ? args.values_rest : args.keys_rest, d, true},
                at.head * members.n + token, at.column, mean);
    else if ((marked & kOwnFirst) != 0 && !alone)
      store_mean(first_token, mean);
  };

  const int begin = places.next(0);
  const auto end = static_cast<int>(
      min(int64_t{places.next(static_cast<int>(kSegment))}, members.n - first_place));
  read_rows<kN, kBF16>(
      begin, end, rows, [&](int p) { return places.codes[p]; },
      [&](int p) { return (static_cast<int>(average) | (places.marked[p] & kFirst)) != 0; },
      [&](int p, const float(&x)[kN]) {
        take(first_place + p, places.marked[p], places.shares[p], x);
      });
}

unsigned blocks(int64_t n, int64_t size) { return static_cast<unsigned>(ceil_div(n, size)); }

bool aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// Whether rows of tokens can be read 8 elements at a time.
bool by_eights(const TokenRows& tokens, int64_t head_dim, bool bf16) {
  const int64_t unit = bf16 ? 8 : 4;
  return head_dim % 8 == 0 && aligned(tokens.new_keys) && aligned(tokens.new_values) &&
         tokens.new_key_stride % unit == 0 && tokens.new_value_stride % unit == 0;
}

}  // namespace

void running_means(const std::shared_ptr<Context>& context, const MeansArgs& args) {
  const int64_t width = 2 * args.n_kv_heads * args.head_dim;
  const int64_t n_blocks = ceil_div(args.members.n, kSegment);
  const bool eights = by_eights(args.tokens, args.head_dim, args.bf16);
  const dim3 grid(static_cast<unsigned>(n_blocks),
                  blocks(width, kColumnThreads * (eights ? 8 : 1)));
  DeviceArray<float> sums;
  if (n_blocks > 1 && args.may_be_long) {
    sums = DeviceArray<float>(context, n_blocks * width);
    const DeviceArray<int32_t> follows(context, n_blocks);
    const auto kernel = args.bf16 ? (eights ? segment_sums<8, true> : segment_sums<1, true>)
                                  : (eights ? segment_sums<8, false> : segment_sums<1, false>);
    launch_programmatic(*context, "segment_sums", kernel, grid, kColumnThreads, args, sums.data(),
                        follows.data());
    launch_programmatic(*context, "add_segments", add_segments, blocks(width, kColumnThreads),
                        kColumnThreads, n_blocks, width, follows.data(), sums.data());
  }
  const auto kernel = args.bf16 ? (eights ? means<8, true> : means<1, true>)
                                : (eights ? means<8, false> : means<1, false>);
  launch_programmatic(*context, "means", kernel, grid, kColumnThreads, args, sums.data());
}

}  // namespace sluice::impl::cuda::keys
