// Which rows are in force at each border.

#include "backend/cuda/attention/keys/kernels.h"
#include "backend/cuda/runtime/dependent_launch.cuh"

namespace sluice::impl::cuda::keys {
namespace {

// One block to a border: rows of the cache, then those of tokens, in their order.
constexpr int kListThreads = 1024;
constexpr int kPerThread = 8;  // of a thread at a time

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
  launch_dependents();
  wait_on_dependency();
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

}  // namespace

void list_far_rows(Context& context, const ListArgs& args) {
  launch_programmatic(context, "list_rows", list_rows, static_cast<unsigned>(args.n_borders),
                      kListThreads, args);
}

}  // namespace sluice::impl::cuda::keys
