// Running means of clusters, and clusters' rows after them.

#include "backend/cuda/early.cuh"
#include "backend/cuda/element.cuh"
#include "backend/cuda/keys_rows.cuh"
#include "backend/cuda/mma.cuh"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 128;

// kN columns of one head, of keys or of values; `flat` counts them, keys before values.
struct Columns {
  int64_t flat;
  bool values;
  int64_t head, column;
};
__device__ Columns columns_at(int64_t flat, int64_t width, int64_t head_dim) {
  const bool values = flat >= width;
  const int64_t at = values ? flat - width : flat;
  return {flat, values, at / head_dim, at % head_dim};
}

// The rest that rounding a cluster's mean left: row of (n_kv_heads, capacity, head_dim).
__device__ RowsView rests_of(const ClusterRows& rows, bool values, int64_t head_dim) {
  uint16_t* rests = values ? rows.values_rest : rows.keys_rest;
  return {reinterpret_cast<std::byte*>(rests), head_dim, true};
}

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

// What the members of a cluster before this pass add up to.
template <int kN, bool kBF16>
__device__ void load_sum_before(const MeansArgs& args, const Columns& at, int32_t cluster,
                                float (&to)[kN]) {
  load_before<kN, kBF16>(args, at, cluster, to);
  const auto count = static_cast<float>(args.counts_before[cluster]);
  for (int i = 0; i < kN; ++i) to[i] *= count;
}

// Members whose rows are on their way.
constexpr int kAhead = 8;

// kN columns of a row as they are in memory. Fetched without a branch and widened when they are
// needed: whatever stood between two fetches would wait for the first.
template <int kN, bool kBF16>
struct Fetched {
  static constexpr int kWords = kN == 1 ? 1 : kBF16 ? kN / 2 : kN;
  uint32_t words[kWords];

  __device__ void fetch(const std::byte* row, int64_t column) {
    const std::byte* from = row + column * (kBF16 ? 2 : 4);
    if constexpr (kN == 1) {
      words[0] = kBF16 ? uint32_t{*reinterpret_cast<const uint16_t*>(from)} << 16
                       : *reinterpret_cast<const uint32_t*>(from);
    } else {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) set(i / 4, *reinterpret_cast<const uint4*>(from + 4 * i));
    }
  }
  __device__ void set(int part, const uint4& four) {
    words[4 * part] = four.x;
    words[4 * part + 1] = four.y;
    words[4 * part + 2] = four.z;
    words[4 * part + 3] = four.w;
  }
  __device__ void widen(float (&to)[kN]) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (kN > 1 && kBF16) {
        const float2 pair = widened(words[i]);
        to[2 * i] = pair.x;
        to[2 * i + 1] = pair.y;
      } else {
        to[i] = __uint_as_float(words[i]);
      }
    }
  }
};

// Sums of segments that their cluster goes on behind, (places / kSegment, columns): one at most
// begins among the places of a block. follows[block]: whether its cluster began before; -1: none.
template <int kN, bool kBF16>
__global__ void __launch_bounds__(kThreads)
    segment_sums(const __grid_constant__ MeansArgs args, float* sums, int32_t* follows) {
  __shared__ int32_t found;
  let_next_begin();
  wait_for_earlier();
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
  const int64_t flat = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kN;
  if (begin < 0 || flat >= 2 * width) return;
  const Columns at = columns_at(flat, width, d);
  const HeadView head = args.heads[at.head];
  if (head.set != args.set || !is_average(head, at.values)) return;
  const HeadRows rows = token_rows(args.tokens, at.values, at.head, d, kBF16 ? 2 : 4);
  float sum[kN] = {};
  if ((first_mark & (kFirst | kOld)) == (kFirst | kOld))
    load_sum_before<kN, kBF16>(args, at, members.clusters[begin], sum);
  for (int64_t p = begin; p < begin + kSegment; p += kAhead) {
    Fetched<kN, kBF16> fetched[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      fetched[i].fetch(rows.token(members.first + members.order[p + i]), at.column);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      float x[kN];
      fetched[i].widen(x);
      for (int c = 0; c < kN; ++c) sum[c] += x[c];
    }
  }
  for (int c = 0; c < kN; ++c) sums[int64_t{blockIdx.x} * 2 * width + flat + c] = sum[c];
}

// Each becomes the sum of its cluster from the beginning. A thread to a column.
__global__ void add_segments(int64_t n_blocks, int64_t n_columns, const int32_t* follows,
                             float* sums) {
  constexpr int kTurn = 16;
  let_next_begin();
  wait_for_earlier();
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  int any = 0;
  for (int64_t i = threadIdx.x; i < n_blocks; i += blockDim.x) any |= follows[i] > 0 ? 1 : 0;
  if (__syncthreads_or(any) == 0 || column >= n_columns) return;
  float up_to = 0;
  for (int64_t first = 0; first < n_blocks; first += kTurn) {
    int32_t follow[kTurn];
    float x[kTurn];
#pragma unroll
    for (int i = 0; i < kTurn; ++i) follow[i] = first + i < n_blocks ? follows[first + i] : -1;
#pragma unroll
    for (int i = 0; i < kTurn; ++i)
      x[i] = follow[i] >= 0 ? sums[(first + i) * n_columns + column] : 0.0f;
#pragma unroll
    for (int i = 0; i < kTurn; ++i) {
      if (follow[i] < 0) continue;
      up_to = follow[i] == 0 ? x[i] : up_to + x[i];
      if (follow[i] != 0) sums[(first + i) * n_columns + column] = up_to;
    }
  }
}

// The places of the segments that begin among kSegment places: the last ends before twice as many.
struct Places {
  static_assert(kThreads == 2 * kSegment);
  uint32_t begins[kThreads / 32];  // bits
  int32_t marked[kThreads], counts[kThreads];

  // Every thread looks at one.
  __device__ void look(const MembersView& members, int64_t first) {
    const int64_t p = first + threadIdx.x;
    const int32_t mark = p < members.n ? members.marked[p] : 0;
    marked[threadIdx.x] = mark;
    counts[threadIdx.x] = p < members.n ? members.counts_there[p] : 0;
    const uint32_t bits = __ballot_sync(0xffffffffu, (mark & kBegins) != 0);
    if (threadIdx.x % 32 == 0) begins[threadIdx.x / 32] = bits;
    __syncthreads();
  }
  // The first from `from` on, a multiple of 32, that begins one.
  __device__ int next(int from) const {
    for (int i = from / 32; i < kThreads / 32; ++i)
      if (begins[i] != 0) return 32 * i + __ffs(static_cast<int>(begins[i])) - 1;
    return kThreads;
  }
};

// Rows on their way to the threads that asked for them, kN columns each: every thread has its own
// part, so nobody waits for another.
template <int kN, bool kBF16>
struct Coming {
  static constexpr int kRows = 8;
  static constexpr int kParts = kBF16 ? 1 : 2;  // of 16 bytes
  uint4 rows[kRows][kParts][kThreads];

  // One row at a time, or, where `from` is null, none.
  __device__ void ask(int i, const std::byte* from) {
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      if (from != nullptr) copy_async(&rows[i % kRows][part][threadIdx.x], from + 16 * part, true);
    commit_copies();
  }
  // The i-th row, after kRows - 1 more were asked for.
  __device__ void take(int i, float (&x)[kN]) {
    wait_copies<kRows - 1>();
    Fetched<kN, kBF16> row;
#pragma unroll
    for (int part = 0; part < kParts; ++part) row.set(part, rows[i % kRows][part][threadIdx.x]);
    row.widen(x);
  }
};

// A block to the segments that begin among kSegment places, and to some columns, kN to a thread.
template <int kN, bool kBF16>
__global__ void __launch_bounds__(kThreads)
    means(const __grid_constant__ MeansArgs args, const float* sums) {
  __shared__ Places places;
  let_next_begin();
  wait_for_earlier();
  const MembersView& members = args.members;
  const int64_t first_place = int64_t{blockIdx.x} * kSegment;
  places.look(members, first_place);
  const int64_t d = args.head_dim, width = args.n_kv_heads * d;
  const int64_t flat = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kN;
  if (flat >= 2 * width) return;
  const Columns at = columns_at(flat, width, d);
  const HeadView head = args.heads[at.head];
  if (head.set != args.set) return;
  const bool average = is_average(head, at.values);
  const HeadRows rows = token_rows(args.tokens, at.values, at.head, d, kBF16 ? 2 : 4);
  const RowsView to{at.values ? args.values : args.keys, d, kBF16};
  const auto load_token = [&](int32_t token, float(&x)[kN]) {
    load<kN>(ConstRowsView{rows.token(members.first + token), 0, kBF16}, 0, at.column, x);
  };

  float sum[kN];            // or, where nothing is averaged, what the representative has
  int32_t first_token = 0;  // of the cluster
  const auto begin_segment = [&](int64_t p, int32_t marked, const float(&x)[kN]) {
    const bool first = (marked & kFirst) != 0;
    if (first) first_token = marked / kMarks;
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
  const auto take = [&](int64_t p, int32_t marked, int32_t count, const float(&x)[kN]) {
    const int32_t token = marked / kMarks;
    if ((marked & kBegins) != 0) begin_segment(p, marked, x);
    if (average)
      for (int c = 0; c < kN; ++c) sum[c] += x[c];
    const bool last = (marked & kLast) != 0;
    const bool alone = (marked & (kFirst | kOwnFirst)) == (kFirst | kOwnFirst);
    if ((marked & kSeen) == 0 || (alone && !last)) return;
    const float share = average ? 1 / static_cast<float>(count) : 1.0f;
    float mean[kN];
    for (int c = 0; c < kN; ++c) mean[c] = sum[c] * share;
    store<kN>(to, at.head * members.n + token, at.column, mean);
    if (!last || !kBF16) return;
    for (int c = 0; c < kN; ++c) mean[c] -= __bfloat162float(__float2bfloat16_rn(mean[c]));
    if ((marked & kOld) != 0)
      store<kN>(RowsView{at.values ? args.values_rest : args.keys_rest, d, true},
                at.head * members.n + token, at.column, mean);
    else if ((marked & kOwnFirst) != 0 && !alone)
      store<kN>(to, at.head * members.n + first_token, at.column, mean);
  };

  const int begin = places.next(0);
  const auto end = static_cast<int>(
      min(int64_t{places.next(static_cast<int>(kSegment))}, members.n - first_place));
  if constexpr (kN == 1) {
    for (int p = begin; p < end; ++p) {
      float x[kN];
      load_token(places.marked[p] / kMarks, x);
      take(first_place + p, places.marked[p], places.counts[p], x);
    }
  } else {
    __shared__ Coming<kN, kBF16> coming;
    const auto ask = [&](int p) {
      const std::byte* from = nullptr;
      if (p < end)
        from = rows.token(members.first + places.marked[p] / kMarks) + at.column * (kBF16 ? 2 : 4);
      coming.ask(p, from);
    };
    for (int i = 0; i < coming.kRows; ++i) ask(begin + i);
    for (int p = begin; p < end; ++p) {
      float x[kN];
      coming.take(p, x);
      ask(p + coming.kRows);
      take(first_place + p, places.marked[p], places.counts[p], x);
    }
  }
}

// A block to the last member of a cluster.
template <int kN>
__global__ void settle(const __grid_constant__ SettleArgs args) {
  const MembersView& members = args.members;
  const int64_t p = blockIdx.x, d = args.head_dim, width = args.n_kv_heads * d;
  const int32_t cluster = members.clusters[p], token = members.order[p];
  if (p + 1 < members.n && members.clusters[p + 1] == cluster) return;
  const bool is_new = cluster >= args.n_before;
  const auto first = static_cast<int32_t>(members.first_new[cluster] - members.first);
  const bool has_rest = is_new && first != token && members.own[cluster] == first;
  for (int64_t flat = int64_t{threadIdx.x} * kN; flat < 2 * width; flat += kThreads * kN) {
    const Columns at = columns_at(flat, width, d);
    if (args.heads[at.head].set != args.set) continue;
    const ConstRowsView from{at.values ? args.values : args.keys, d, args.bf16};
    const int64_t row = at.head * args.to.capacity + cluster;
    float x[kN];
    load<kN>(from, at.head * members.n + token, at.column, x);
    store<kN>(RowsView{at.values ? args.to.values : args.to.keys, d, args.bf16}, row, at.column, x);
    if (!args.bf16) continue;
    for (int i = 0; i < kN; ++i) x[i] = 0;
    const ConstRowsView rests{at.values ? args.values_rest : args.keys_rest, d, true};
    if (!is_new) load<kN>(rests, at.head * members.n + token, at.column, x);
    if (has_rest) load<kN>(from, at.head * members.n + first, at.column, x);
    store<kN>(rests_of(args.to, at.values, d), row, at.column, x);
  }
  if (threadIdx.x != 0) return;
  args.counts[cluster] = members.counts[token];
  // Exempt tokens are alone in their clusters.
  args.exempt[cluster] = args.status[token] == static_cast<uint8_t>(TokenStatus::kExempt) ? 1 : 0;
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
  const dim3 grid(static_cast<unsigned>(n_blocks), blocks(width, kThreads * (eights ? 8 : 1)));
  DeviceArray<float> sums;
  if (n_blocks > 1) {
    sums = DeviceArray<float>(context, n_blocks * width);
    const DeviceArray<int32_t> follows(context, n_blocks);
    const auto kernel = args.bf16 ? (eights ? segment_sums<8, true> : segment_sums<1, true>)
                                  : (eights ? segment_sums<8, false> : segment_sums<1, false>);
    launch_early(*context, "segment_sums", kernel, grid, kThreads, args, sums.data(),
                 follows.data());
    launch_early(*context, "add_segments", add_segments, blocks(width, kThreads), kThreads,
                 n_blocks, width, follows.data(), sums.data());
  }
  const auto kernel = args.bf16 ? (eights ? means<8, true> : means<1, true>)
                                : (eights ? means<8, false> : means<1, false>);
  launch_early(*context, "means", kernel, grid, kThreads, args, sums.data());
}

void settle_clusters(Context& context, const SettleArgs& args) {
  const auto kernel = args.head_dim % 8 == 0 ? settle<8> : settle<1>;
  kernel<<<static_cast<unsigned>(args.members.n), kThreads, 0, context.stream()>>>(args);
  check_launch("settle");
}

}  // namespace sluice::cuda
