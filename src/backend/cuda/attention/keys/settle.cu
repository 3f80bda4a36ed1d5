// Clusters' rows after a pass.

#include "backend/cuda/attention/keys/columns.cuh"

namespace sluice::impl::cuda::keys {
namespace {

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
  for (int64_t flat = int64_t{threadIdx.x} * kN; flat < 2 * width; flat += kColumnThreads * kN) {
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

}  // namespace

void settle_clusters(Context& context, const SettleArgs& args) {
  const auto kernel = args.head_dim % 8 == 0 ? settle<8> : settle<1>;
  kernel<<<static_cast<unsigned>(args.members.n), kColumnThreads, 0, context.stream()>>>(args);
  check_launch("settle");
}

}  // namespace sluice::impl::cuda::keys
