// Two rows of scores against each other, a block to a row. Float64 throughout, as on the host: KL
// of near-equal predictions is a small difference of large sums.

#include "backend/cuda/elementwise/elements.h"
#include "backend/cuda/primitives/element.cuh"

namespace sluice::impl::cuda::elementwise {
namespace {

constexpr int kThreads = 256;

struct Best {
  float score;
  int32_t id;
};

// Ties go to the smaller id.
__device__ Best better(Best a, Best b) {
  return b.score > a.score || (b.score == a.score && b.id < a.id) ? b : a;
}

__device__ Best block_best(Best best, Best* shared) {
  for (int step = 16; step > 0; step /= 2)
    best = better(best, {__shfl_xor_sync(0xffffffffu, best.score, step),
                         __shfl_xor_sync(0xffffffffu, best.id, step)});
  __syncthreads();  // whoever reads the last one is done
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = best;
  __syncthreads();
  for (int i = 0; i < kThreads / 32; ++i) best = better(best, shared[i]);
  return best;
}

struct CompareRows {
  const float* base;
  int64_t base_stride;
  const float* scores;
  int64_t scores_stride;
  const int32_t* next;
  TokenComparison* out;
  int32_t vocab;
};

__global__ void __launch_bounds__(kThreads) compare_rows(CompareRows args) {
  __shared__ double sums[kThreads / 32];
  __shared__ Best bests[kThreads / 32];
  const int64_t row = blockIdx.x;
  const float* base = args.base + row * args.base_stride;
  const float* scores = args.scores + row * args.scores_stride;
  Best base_top{-INFINITY, 0}, top{-INFINITY, 0};
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < args.vocab; i += kThreads) {
    base_top = better(base_top, {base[i], i});
    top = better(top, {scores[i], i});
  }
  base_top = block_best(base_top, bests);
  top = block_best(top, bests);
  // KL = sum p (x - y) - log_total(x) + log_total(y), x and y the scores, p = exp(x) / total(x).
  double base_total = 0, total = 0, gap = 0;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < args.vocab; i += kThreads) {
    const double x = base[i], y = scores[i];
    const double weight = exp(x - double{base_top.score});
    base_total += weight;
    total += exp(y - double{top.score});
    // A score of -inf in both is a token that neither allows.
    if (weight > 0) gap += weight * (x - y);
  }
  base_total = block_sum(base_total, sums);
  total = block_sum(total, sums);
  gap = block_sum(gap, sums);
  if (threadIdx.x != 0) return;
  const double base_log = double{base_top.score} + log(base_total);
  const double log_total = double{top.score} + log(total);
  const int32_t next = args.next[row];
  TokenComparison token{};
  token.base_loss = base_log - double{base[next]};
  token.loss = log_total - double{scores[next]};
  const double kl = gap / base_total - (base_log - log_total);
  token.kl = kl < 0 ? 0 : kl;  // by round-off; a NaN stays one
  token.delta_p = exp(-token.loss) - exp(-token.base_loss);
  token.same_top = top.id == base_top.id;
  args.out[row] = token;
}

}  // namespace

void compare_scores(Context& context, const ConstTensor& base, const ConstTensor& scores,
                    const int32_t* next, TokenComparison* out) {
  const CompareRows args{.base = base.data<float>(),
                         .base_stride = base.row_stride(),
                         .scores = scores.data<float>(),
                         .scores_stride = scores.row_stride(),
                         .next = next,
                         .out = out,
                         .vocab = static_cast<int32_t>(base.row_elements())};
  compare_rows<<<static_cast<unsigned>(base.rows()), kThreads, 0, context.stream()>>>(args);
  check_launch("compare_rows");
}

}  // namespace sluice::impl::cuda::elementwise
