// Clusters of far tokens: who belongs together, running means, and which rows are in force.

#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "backend/cuda/element.cuh"
#include "backend/cuda/keys_rows.cuh"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void begin_links(MembersView members, int32_t* tokens) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < members.n) tokens[i] = static_cast<int32_t>(i);
  if (i < members.n_clusters) members.first_new[i] = INT32_MAX;
}

__global__ void link(MembersView members, const uint8_t* status) {
  const int64_t p = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (p >= members.n) return;
  const int32_t token = members.order[p], cluster = members.clusters[p];
  const auto position = [&](int32_t t) { return static_cast<int32_t>(members.first + t); };
  const bool last = p + 1 == members.n || members.clusters[p + 1] != cluster;
  const int32_t here = position(token), next = last ? INT32_MAX : position(members.order[p + 1]);
  members.next[token] = next;
  members.marked[p] = 2 * token + (last || here / members.block != next / members.block ? 1 : 0);
  if (p == 0 || members.clusters[p - 1] != cluster) members.first_new[cluster] = here;
  if (status[token] != static_cast<uint8_t>(TokenStatus::kRedundant)) members.own[cluster] = token;
}

// Columns [column, column + kN) of one head, of keys or of values.
struct Columns {
  bool values;
  int64_t head, column;
};
__device__ Columns columns_at(int64_t flat, int64_t width, int64_t head_dim) {
  const bool values = flat >= width;
  const int64_t at = values ? flat - width : flat;
  return {values, at / head_dim, at % head_dim};
}

// The rest that rounding a cluster's mean left: row of (n_kv_heads, capacity, head_dim).
__device__ RowsView rests_of(const ClusterRows& rows, bool values, int64_t head_dim) {
  uint16_t* rests = values ? rows.values_rest : rows.keys_rest;
  return {reinterpret_cast<std::byte*>(rests), head_dim, true};
}

// What one thread sums of one cluster.
template <int kN>
struct Running {
  float sum[kN] = {};  // or, where nothing is averaged, the representative's own
  int32_t count = 0;
};

template <int kN>
__device__ Running<kN> begin_sum(const MeansArgs& args, const Columns& at, bool average,
                                 const HeadRows& rows, int32_t cluster) {
  Running<kN> running;
  const int64_t d = args.head_dim;
  if (cluster < args.before.n) running.count = args.before.counts[cluster];
  if (running.count > 0) {
    const int64_t row = at.head * args.before.rows.capacity + cluster;
    const ClusterRows& before = args.before.rows;
    load<kN>(ConstRowsView{at.values ? before.values : before.keys, d, args.bf16}, row, at.column,
             running.sum);
    if (args.bf16) {
      float rest[kN];
      load<kN>(rests_of(before, at.values, d), row, at.column, rest);
      for (int i = 0; i < kN; ++i) running.sum[i] += rest[i];
    }
    const float share = average ? static_cast<float>(running.count) : 1.0f;
    for (int i = 0; i < kN; ++i) running.sum[i] *= share;
  } else if (!average) {
    const int64_t own = args.members.first + args.members.own[cluster];
    load<kN>(ConstRowsView{rows.token(own), 0, args.bf16}, 0, at.column, running.sum);
  }
  return running;
}

// A block to the first member of a cluster and to some columns, kN to a thread; blocks of other
// members have nothing to do. Members are fetched kAhead at a time: a large cluster is one chain.
template <int kN>
__global__ void __launch_bounds__(kThreads, 4) means(const __grid_constant__ MeansArgs args) {
  constexpr int kAhead = 8;
  const MembersView& members = args.members;
  const int64_t begin = blockIdx.x, d = args.head_dim, width = args.n_kv_heads * d;
  const int32_t cluster = members.clusters[begin];
  const int32_t cluster_before = begin > 0 ? members.clusters[begin - 1] : -1;
  // The members from p on, as they are marked; -1 behind the last.
  int32_t coming[kAhead + 1];
  const auto read_members = [&](int64_t p) {
#pragma unroll
    for (int i = 0; i <= kAhead; ++i) {
      const int64_t place = p + i < members.n ? p + i : members.n - 1;
      const int32_t marked = members.marked[place];
      coming[i] = members.clusters[place] == cluster && p + i < members.n ? marked : -1;
    }
  };
  read_members(begin);
  const int64_t flat = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kN;
  if (cluster_before == cluster || flat >= 2 * width) return;
  const Columns at = columns_at(flat, width, d);
  const HeadView head = args.heads[at.head];
  if (head.set != args.set) return;
  const auto far = static_cast<FarKey>(head.far);
  const bool average = at.values ? far != FarKey::kOwn : far == FarKey::kCentroid;
  const bool counts_here = !at.values && at.head == args.counting_head && at.column == 0;
  const HeadRows rows = token_rows(args.tokens, at.values, at.head, d, args.bf16 ? 2 : 4);
  const RowsView to{at.values ? args.values : args.keys, d, args.bf16};
  const int32_t first = coming[0] / 2;
  float x[kAhead][kN];
  const auto fetch_rows = [&] {
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (average && coming[i] >= 0)
        load<kN>(ConstRowsView{rows.token(members.first + coming[i] / 2), 0, args.bf16}, 0,
                 at.column, x[i]);
  };
  fetch_rows();
  // Only a new cluster's own token is looked up, and it is here.
  const bool is_new = cluster >= args.before.n;
  const bool own_first = is_new && members.own[cluster] == first;

  Running<kN> running = begin_sum<kN>(args, at, average, rows, cluster);
  const auto take = [&](int32_t marked, bool last, const float(&row)[kN]) {
    const int32_t token = marked / 2;
    ++running.count;
    if (average)
      for (int i = 0; i < kN; ++i) running.sum[i] += row[i];
    if (counts_here) members.counts[token] = running.count;
    const bool alone = own_first && running.count == 1;
    if (marked % 2 == 0 || (alone && !last)) return;
    const float share = average ? 1 / static_cast<float>(running.count) : 1.0f;
    float mean[kN];
    for (int i = 0; i < kN; ++i) mean[i] = running.sum[i] * share;
    store<kN>(to, at.head * members.n + token, at.column, mean);
    if (!last || !args.bf16 || (is_new && (!own_first || token == first))) return;
    for (int i = 0; i < kN; ++i) mean[i] -= __bfloat162float(__float2bfloat16_rn(mean[i]));
    if (is_new)
      store<kN>(to, at.head * members.n + first, at.column, mean);
    else
      store<kN>(rests_of(args.before.rows, at.values, d),
                at.head * args.before.rows.capacity + cluster, at.column, mean);
  };
  for (int64_t p = begin;; p += kAhead) {
    int32_t now[kAhead + 1];
#pragma unroll
    for (int i = 0; i <= kAhead; ++i) now[i] = coming[i];
    if (now[kAhead] >= 0) read_members(p + kAhead);
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (now[i] >= 0) take(now[i], now[i + 1] < 0, x[i]);
    if (now[kAhead] < 0) return;
    fetch_rows();
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
    if (!args.bf16 || !is_new) continue;
    for (int i = 0; i < kN; ++i) x[i] = 0;
    if (has_rest) load<kN>(from, at.head * members.n + first, at.column, x);
    store<kN>(rests_of(args.to, at.values, d), row, at.column, x);
  }
  if (threadIdx.x != 0) return;
  args.counts[cluster] = members.counts[token];
  // Exempt tokens are alone in their clusters.
  args.exempt[cluster] = args.status[token] == static_cast<uint8_t>(TokenStatus::kExempt) ? 1 : 0;
}

// One block to a border: rows of the cache, then those of tokens, in their order.
constexpr int kListThreads = 1024;
constexpr int kPerThread = 4;  // of a thread at a time

// The row of the i-th candidate of a border, or kNoRow; and how many members it stands for.
__device__ int32_t listed_row(const ListArgs& args, int64_t i, int64_t border, int32_t* count) {
  if (i < args.n_before) {
    *count = args.counts_before[i];
    const bool in_force = args.members.n == 0 || args.members.first_new[i] >= border;
    const bool listed = *count > 0 && in_force && (!args.exempt_only || args.exempt_before[i] != 0);
    return listed ? static_cast<int32_t>(i) : kNoRow;
  }
  const int64_t token = i - args.n_before;
  *count = args.members.counts[token];
  const auto status = static_cast<TokenStatus>(args.status[token]);
  if (args.members.next[token] < border || (args.exempt_only && status != TokenStatus::kExempt))
    return kNoRow;
  return row_of_token(args.members.first + token, *count == 1 && status != TokenStatus::kRedundant);
}

__global__ void list_rows(const __grid_constant__ ListArgs args) {
  __shared__ int of_warp[kListThreads / 32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto [border, offset] = args.borders[blockIdx.x];
  const int64_t n_tokens = border > args.members.first ? border - args.members.first : 0;
  const int64_t n = args.n_before + n_tokens;
  int64_t n_listed = 0;
  for (int64_t first = 0; first < n; first += kListThreads * kPerThread) {
    int32_t rows[kPerThread], counts[kPerThread] = {};
    int mine = 0;
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
      const int64_t i = first + int64_t{threadIdx.x} * kPerThread + k;
      rows[k] = i < n ? listed_row(args, i, border, &counts[k]) : kNoRow;
      mine += rows[k] != kNoRow ? 1 : 0;
    }
    int up_to = mine;  // this warp's, up to this lane
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, up_to, step);
      if (lane >= step) up_to += other;
    }
    if (lane == 31) of_warp[warp] = up_to;
    __syncthreads();
    int before = up_to - mine, all = 0;
    for (int w = 0; w < kListThreads / 32; ++w) {
      if (w < warp) before += of_warp[w];
      all += of_warp[w];
    }
    int64_t place = offset + n_listed + before;
#pragma unroll
    for (int k = 0; k < kPerThread; ++k) {
      if (rows[k] == kNoRow) continue;
      args.list.rows[place] = rows[k];
      args.list.bias[place] = logf(static_cast<float>(counts[k])) / args.scale;
      ++place;
    }
    n_listed += all;
    __syncthreads();  // all have read the counts of warps
  }
  if (threadIdx.x == 0) args.n_far[blockIdx.x] = static_cast<int32_t>(n_listed);
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

void link_members(const std::shared_ptr<Context>& context, const int32_t* cluster,
                  const uint8_t* status, const MembersView& members) {
  SLUICE_CHECK(members.n > 0 && members.n <= INT32_MAX / 4 && members.n_clusters <= INT32_MAX);
  const auto n = static_cast<int>(members.n);
  const cudaStream_t stream = context->stream();
  const DeviceArray<int32_t> tokens(context, n);
  begin_links<<<blocks(std::max(members.n, members.n_clusters), 256), 256, 0, stream>>>(
      members, tokens.data());
  check_launch("begin_links");
  size_t bytes = 0;
  const auto bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(members.n_clusters)));
  const auto sort = [&](void* memory) {
    check(cub::DeviceRadixSort::SortPairs(memory, bytes, cluster, members.clusters, tokens.data(),
                                          members.order, n, 0, bits, stream),
          "sorting tokens");
  };
  sort(nullptr);
  const DeviceArray<std::byte> memory(context, static_cast<int64_t>(bytes));
  sort(memory.data());
  link<<<blocks(n, 256), 256, 0, stream>>>(members, status);
  check_launch("link");
}

void running_means(Context& context, const MeansArgs& args) {
  const int64_t width = 2 * args.n_kv_heads * args.head_dim;
  const bool eights = by_eights(args.tokens, args.head_dim, args.bf16);
  const dim3 grid(static_cast<unsigned>(args.members.n),
                  blocks(width, kThreads * (eights ? 8 : 1)));
  const auto kernel = eights ? means<8> : means<1>;
  kernel<<<grid, kThreads, 0, context.stream()>>>(args);
  check_launch("means");
}

void settle_clusters(Context& context, const SettleArgs& args) {
  const auto kernel = args.head_dim % 8 == 0 ? settle<8> : settle<1>;
  kernel<<<static_cast<unsigned>(args.members.n), kThreads, 0, context.stream()>>>(args);
  check_launch("settle");
}

void list_far_rows(Context& context, const ListArgs& args) {
  list_rows<<<static_cast<unsigned>(args.n_borders), kListThreads, 0, context.stream()>>>(args);
  check_launch("list_rows");
}

}  // namespace sluice::cuda
