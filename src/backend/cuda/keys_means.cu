// Running means of clusters.

#include "backend/cuda/early.cuh"
#include "backend/cuda/keys_means.cuh"

namespace sluice::cuda {
namespace {

// Sums of segments that their cluster goes on behind, (places / kSegment, columns): one at most
// begins among the places of a block. follows[block]: whether its cluster began before; -1: none.
template <int kN, bool kBF16>
__global__ void __launch_bounds__(kColumnThreads)
    segment_sums(const __grid_constant__ MeansArgs args, int32_t* follows) {
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
  const int64_t flat = (int64_t{blockIdx.y} * kColumnThreads + threadIdx.x) * kN;
  if (begin < 0 || flat >= 2 * width) return;
  const Columns at = columns_at(flat, width, d);
  const HeadView head = args.heads[at.head];
  if (head.set != args.set || !is_average(head, at.values)) return;
  const HeadRows rows = token_rows(args.tokens, at.values, at.head, d, kBF16 ? 2 : 4);
  float sum[kN] = {};
  if ((first_mark & (kFirst | kOld)) == (kFirst | kOld))
    load_sum_before<kN, kBF16>(args, at, members.clusters[begin], sum);
  const int32_t* order = members.order + begin;
  read_rows<kN, kBF16>(
      0, static_cast<int>(kSegment), at.column,
      [&](int i) { return rows.token(members.first + order[i]); },
      [&](int, const float(&x)[kN]) {
        for (int c = 0; c < kN; ++c) sum[c] += x[c];
      });
  for (int c = 0; c < kN; ++c) args.sums[int64_t{blockIdx.x} * 2 * width + flat + c] = sum[c];
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
  static_assert(kColumnThreads == 2 * kSegment);
  uint32_t begins[kColumnThreads / 32];  // bits
  int32_t marked[kColumnThreads], counts[kColumnThreads];

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
    for (int i = from / 32; i < kColumnThreads / 32; ++i)
      if (begins[i] != 0) return 32 * i + __ffs(static_cast<int>(begins[i])) - 1;
    return kColumnThreads;
  }
};

// A block to the segments that begin among kSegment places, and to some columns, kN to a thread.
template <int kN, bool kBF16>
__global__ void __launch_bounds__(kColumnThreads, 8) means(const __grid_constant__ MeansArgs args) {
  __shared__ Places places;
  let_next_begin();
  wait_for_earlier();
  const MembersView& members = args.members;
  const int64_t first_place = int64_t{blockIdx.x} * kSegment;
  places.look(members, first_place);
  const int64_t d = args.head_dim, width = args.n_kv_heads * d;
  const int64_t flat = (int64_t{blockIdx.y} * kColumnThreads + threadIdx.x) * kN;
  if (flat >= 2 * width) return;
  const Columns at = columns_at(flat, width, d);
  const HeadView head = args.heads[at.head];
  if (head.set != args.set) return;
  const HeadRows rows = token_rows(args.tokens, at.values, at.head, d, kBF16 ? 2 : 4);
  ColumnMeans<kN, kBF16> columns(args, at, head);
  const int begin = places.next(0);
  const auto end = static_cast<int>(
      min(int64_t{places.next(static_cast<int>(kSegment))}, members.n - first_place));
  read_rows<kN, kBF16>(
      begin, end, at.column,
      [&](int p) -> const std::byte* {
        const int32_t marked = places.marked[p];
        return columns.reads(marked) ? rows.token(members.first + marked / kMarks) : nullptr;
      },
      [&](int p, const float(&x)[kN]) {
        columns.take(first_place + p, places.marked[p], places.counts[p], x);
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

int64_t sums_of_segments(const MeansArgs& args) {
  const int64_t n_blocks = ceil_div(args.members.n, kSegment);
  return n_blocks > 1 ? n_blocks * 2 * args.n_kv_heads * args.head_dim : 0;
}

void add_up_segments(const std::shared_ptr<Context>& context, const MeansArgs& args) {
  const int64_t n_blocks = ceil_div(args.members.n, kSegment);
  if (n_blocks <= 1) return;
  const int64_t width = 2 * args.n_kv_heads * args.head_dim;
  const bool eights = by_eights(args.tokens, args.head_dim, args.bf16);
  const dim3 grid(static_cast<unsigned>(n_blocks),
                  blocks(width, kColumnThreads * (eights ? 8 : 1)));
  const DeviceArray<int32_t> follows(context, n_blocks);
  const auto kernel = args.bf16 ? (eights ? segment_sums<8, true> : segment_sums<1, true>)
                                : (eights ? segment_sums<8, false> : segment_sums<1, false>);
  launch_early(*context, "segment_sums", kernel, grid, kColumnThreads, args, follows.data());
  launch_early(*context, "add_segments", add_segments, blocks(width, kColumnThreads),
               kColumnThreads, n_blocks, width, follows.data(), args.sums);
}

void running_means(Context& context, const MeansArgs& args) {
  const bool eights = by_eights(args.tokens, args.head_dim, args.bf16);
  const dim3 grid(blocks(args.members.n, kSegment),
                  blocks(2 * args.n_kv_heads * args.head_dim, kColumnThreads * (eights ? 8 : 1)));
  const auto kernel = args.bf16 ? (eights ? means<8, true> : means<1, true>)
                                : (eights ? means<8, false> : means<1, false>);
  launch_early(context, "means", kernel, grid, kColumnThreads, args);
}

}  // namespace sluice::cuda
