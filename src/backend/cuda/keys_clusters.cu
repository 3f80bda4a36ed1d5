// Clusters of far tokens: who belongs together, running means, and which rows are in force.

#include <cub/device/device_radix_sort.cuh>

#include "backend/cuda/element.cuh"
#include "backend/cuda/keys_kernels.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void number_tokens(int32_t* tokens, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) tokens[i] = static_cast<int32_t>(i);
}

__global__ void clear_clusters(LinkArgs args) {
  const int64_t c = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (c < args.n_clusters) args.first_new[c] = INT32_MAX;
}

__global__ void link(LinkArgs args) {
  const int64_t p = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (p >= args.n) return;
  const int32_t token = args.order[p], cluster = args.clusters[p];
  const auto position = [&](int32_t t) { return static_cast<int32_t>(args.first + t); };
  const bool last = p + 1 == args.n || args.clusters[p + 1] != cluster;
  args.next[token] = last ? INT32_MAX : position(args.order[p + 1]);
  if (p == 0 || args.clusters[p - 1] != cluster) args.first_new[cluster] = position(token);
  if (args.status[token] != static_cast<uint8_t>(TokenStatus::kRedundant))
    args.own[cluster] = token;
}

// Where a head's row is in (n_kv_heads, capacity, head_dim).
__device__ int64_t row_of(int64_t head, int64_t capacity, int64_t place) {
  return head * capacity + place;
}

template <int kN>
__device__ void load_mean(const ClusterRows& rows, bool bf16, int64_t row, int64_t d,
                          int64_t column, bool values, float (&to)[kN]) {
  load<kN>(ConstRowsView{values ? rows.values : rows.keys, d, bf16}, row, column, to);
  if (!bf16) return;
  float rest[kN];
  const uint16_t* rests = values ? rows.values_rest : rows.keys_rest;
  load<kN>(ConstRowsView{reinterpret_cast<const std::byte*>(rests), d, true}, row, column, rest);
  for (int i = 0; i < kN; ++i) to[i] += rest[i];
}

template <int kN>
__device__ void store_mean(const ClusterRows& rows, bool bf16, int64_t row, int64_t d,
                           int64_t column, bool values, const float (&mean)[kN]) {
  store<kN>(RowsView{values ? rows.values : rows.keys, d, bf16}, row, column, mean);
  if (!bf16) return;
  float rest[kN];
  for (int i = 0; i < kN; ++i) rest[i] = mean[i] - __bfloat162float(__float2bfloat16_rn(mean[i]));
  uint16_t* rests = values ? rows.values_rest : rows.keys_rest;
  store<kN>(RowsView{reinterpret_cast<std::byte*>(rests), d, true}, row, column, rest);
}

// One block to the first member of a cluster and to some columns, kN to a thread; blocks of other
// members have nothing to do.
template <int kN>
__global__ void means(const __grid_constant__ MeansArgs args) {
  const MembersView& members = args.members;
  const int64_t begin = blockIdx.x;
  const int32_t cluster = members.clusters[begin];
  if (begin > 0 && members.clusters[begin - 1] == cluster) return;
  const int64_t d = args.head_dim;
  const int64_t flat = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kN;
  if (flat >= args.n_kv_heads * d) return;
  const int64_t head = flat / d, column = flat % d;
  if (args.heads[head].set != args.set) return;
  const auto far = static_cast<FarKey>(args.heads[head].far);
  const bool counts_here = head == args.counting_head && column == 0;

  int32_t count = cluster < members.n_before ? members.counts_before[cluster] : 0;
  const int64_t before_row = row_of(head, args.before.capacity, cluster);
  const auto token_row = [&](int32_t t) {
    return row_of(head, args.tokens.capacity, members.first + t - args.tokens.base);
  };
  const ConstRowsView keys{args.tokens.keys, d, args.bf16},
      values{args.tokens.values, d, args.bf16};
  float key[kN] = {}, value[kN] = {};  // sums, or the representative's own
  if (count > 0) {
    load_mean<kN>(args.before, args.bf16, before_row, d, column, false, key);
    load_mean<kN>(args.before, args.bf16, before_row, d, column, true, value);
    for (int i = 0; i < kN; ++i) {
      if (far == FarKey::kCentroid) key[i] *= static_cast<float>(count);
      if (far != FarKey::kOwn) value[i] *= static_cast<float>(count);
    }
  } else {
    const int64_t own = token_row(members.own[cluster]);
    if (far != FarKey::kCentroid) load<kN>(keys, own, column, key);
    if (far == FarKey::kOwn) load<kN>(values, own, column, value);
  }
  for (int64_t p = begin; p < members.n && members.clusters[p] == cluster; ++p) {
    const int32_t token = members.order[p];
    ++count;
    float x[kN];
    if (far == FarKey::kCentroid) {
      load<kN>(keys, token_row(token), column, x);
      for (int i = 0; i < kN; ++i) key[i] += x[i];
    }
    if (far != FarKey::kOwn) {
      load<kN>(values, token_row(token), column, x);
      for (int i = 0; i < kN; ++i) value[i] += x[i];
    }
    if (counts_here) args.counts[token] = count;
    const bool last = p + 1 == members.n || members.clusters[p + 1] != cluster;
    const int64_t block_of = (members.first + token) / args.block;
    const bool seen = last || (members.first + members.order[p + 1]) / args.block != block_of;
    if (args.settle ? !last : !seen) continue;
    float mean_key[kN], mean_value[kN];
    for (int i = 0; i < kN; ++i) {
      mean_key[i] = far == FarKey::kCentroid ? key[i] / static_cast<float>(count) : key[i];
      mean_value[i] = far == FarKey::kOwn ? value[i] : value[i] / static_cast<float>(count);
    }
    if (args.settle) {
      store_mean<kN>(args.before, args.bf16, before_row, d, column, false, mean_key);
      store_mean<kN>(args.before, args.bf16, before_row, d, column, true, mean_value);
    } else {
      const int64_t row = row_of(head, members.n, token);
      store<kN>(RowsView{args.keys, d, args.bf16}, row, column, mean_key);
      store<kN>(RowsView{args.values, d, args.bf16}, row, column, mean_value);
    }
  }
}

__global__ void settle(MembersView members, const int32_t* counts, const uint8_t* status,
                       int32_t* cluster_counts, uint8_t* cluster_exempt) {
  const int64_t p = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (p >= members.n) return;
  const int32_t cluster = members.clusters[p], token = members.order[p];
  if (p + 1 < members.n && members.clusters[p + 1] == cluster) return;
  cluster_counts[cluster] = counts[token];
  // Exempt tokens are alone in their clusters.
  cluster_exempt[cluster] = status[token] == static_cast<uint8_t>(TokenStatus::kExempt) ? 1 : 0;
}

__global__ void most_clusters(const int32_t* cluster, int64_t n, int32_t* most) {
  int32_t mine = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x)
    mine = max(mine, cluster[i] + 1);
  atomicMax(most, mine);
}

// One block to a border: rows of the cache, then running means, in their order.
constexpr int kListThreads = 1024;

__global__ void list_rows(const __grid_constant__ ListArgs args) {
  __shared__ int of_warp[32];
  __shared__ int n_listed;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t border = args.borders[blockIdx.x], offset = args.offsets[blockIdx.x];
  const int64_t n_means = border > args.first ? border - args.first : 0;
  if (threadIdx.x == 0) n_listed = 0;
  __syncthreads();
  for (int64_t first = 0; first < args.n_before + n_means; first += kListThreads) {
    const int64_t i = first + threadIdx.x;
    bool listed = false;
    int32_t row = 0, count = 0;
    if (i < args.n_before) {
      count = args.counts_before[i];
      listed = count > 0 && (args.n == 0 || args.first_new[i] >= border) &&
               (!args.exempt_only || args.exempt_before[i] != 0);
      row = static_cast<int32_t>(i);
    } else if (i < args.n_before + n_means) {
      const int64_t token = i - args.n_before;
      count = args.counts[token];
      listed =
          args.next[token] >= border &&
          (!args.exempt_only || args.status[token] == static_cast<uint8_t>(TokenStatus::kExempt));
      row = static_cast<int32_t>(-1 - token);
    }
    const uint32_t bits = __ballot_sync(0xffffffffu, listed);
    if (lane == 0) of_warp[warp] = __popc(bits);
    __syncthreads();
    int before = n_listed;
    for (int w = 0; w < warp; ++w) before += of_warp[w];
    if (listed) {
      const int64_t at = offset + before + __popc(bits & ((1u << lane) - 1));
      args.list.rows[at] = row;
      args.list.bias[at] = logf(static_cast<float>(count)) / args.scale;
    }
    __syncthreads();
    if (threadIdx.x == kListThreads - 1) n_listed = before + of_warp[warp];
    __syncthreads();
  }
  if (threadIdx.x == 0) args.n_far[blockIdx.x] = n_listed;
}

unsigned blocks(int64_t n, int64_t size) { return static_cast<unsigned>(ceil_div(n, size)); }

bool aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

}  // namespace

void link_members(const std::shared_ptr<Context>& context, const LinkArgs& args) {
  SLUICE_CHECK(args.n > 0 && args.n <= INT32_MAX);
  const auto n = static_cast<int>(args.n);
  const DeviceArray<int32_t> tokens(context, n);
  number_tokens<<<blocks(n, 256), 256, 0, context->stream()>>>(tokens.data(), n);
  check_launch("number_tokens");
  size_t bytes = 0;
  const auto sort = [&](void* memory) {
    check(cub::DeviceRadixSort::SortPairs(memory, bytes, args.cluster, args.clusters, tokens.data(),
                                          args.order, n, 0, 32, context->stream()),
          "sorting tokens");
  };
  sort(nullptr);
  const DeviceArray<std::byte> memory(context, static_cast<int64_t>(bytes));
  sort(memory.data());
  clear_clusters<<<blocks(args.n_clusters, 256), 256, 0, context->stream()>>>(args);
  check_launch("clear_clusters");
  link<<<blocks(n, 256), 256, 0, context->stream()>>>(args);
  check_launch("link");
}

void running_means(Context& context, const MeansArgs& args) {
  const int64_t width = args.n_kv_heads * args.head_dim;
  const bool by_eights = args.head_dim % 8 == 0 && aligned(args.tokens.keys) &&
                         aligned(args.keys) && aligned(args.before.keys);
  const int64_t per_thread = by_eights ? 8 : 1;
  const dim3 grid(static_cast<unsigned>(args.members.n), blocks(width, kThreads * per_thread));
  if (by_eights)
    means<8><<<grid, kThreads, 0, context.stream()>>>(args);
  else
    means<1><<<grid, kThreads, 0, context.stream()>>>(args);
  check_launch("means");
}

void settle_counts(Context& context, const MembersView& members, const int32_t* counts,
                   const uint8_t* status, int32_t* cluster_counts, uint8_t* cluster_exempt) {
  settle<<<blocks(members.n, 256), 256, 0, context.stream()>>>(members, counts, status,
                                                               cluster_counts, cluster_exempt);
  check_launch("settle");
}

void count_clusters(Context& context, const int32_t* cluster, int64_t n, int32_t* most) {
  if (n == 0) return;
  const auto grid = static_cast<unsigned>(std::min<int64_t>(ceil_div(n, 256), 64));
  most_clusters<<<grid, 256, 0, context.stream()>>>(cluster, n, most);
  check_launch("most_clusters");
}

void list_far_rows(Context& context, const ListArgs& args) {
  list_rows<<<static_cast<unsigned>(args.n_borders), kListThreads, 0, context.stream()>>>(args);
  check_launch("list_rows");
}

}  // namespace sluice::cuda
