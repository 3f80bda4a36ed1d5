// Attention of one query and one head to a warp, in f32 throughout: for parity in f32, and for
// heads that the tensor cores cannot take.

#include "backend/cuda/attention/dense/dense.h"
#include "backend/cuda/attention/dense/plain.cuh"

namespace sluice::impl::cuda::dense {
namespace {

constexpr int kWarps = 4;

// Shared memory: kWarps queries and kWarps rows of sums, head_dim each.
__global__ void plain(AttendView view, bool bf16) {
  extern __shared__ float shared[];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t d = view.head_dim, row = blockIdx.x;
  const int64_t head = int64_t{blockIdx.y} * kWarps + warp;
  if (head >= view.n_heads) return;
  const ConstRowsView queries{view.queries, view.query_stride, bf16};
  const ConstRowsView keys{view.keys, d, bf16}, values{view.values, d, bf16};
  const RowsView out{view.out, view.out_stride, bf16};
  float* query = shared + warp * d;
  float* sum = shared + (kWarps + warp) * d;
  float x[1];
  for (int64_t i = lane; i < d; i += 32) {
    load<1>(queries, row, head * d + i, x);
    query[i] = x[0];
    sum[i] = 0;
  }
  __syncwarp();

  const int64_t batch = row / view.n_tokens;
  const int64_t position = view.first_position + row % view.n_tokens;
  const int64_t end = view.causal ? position + 1 : view.first_position + view.n_tokens;
  const int64_t begin =
      view.window > 0 && position + 1 > view.window ? position + 1 - view.window : 0;
  const int64_t kv_head = head / (view.n_heads / view.n_kv_heads);
  const int64_t base = (batch * view.n_kv_heads + kv_head) * view.capacity;
  WarpSoftmax softmax;
  for (int64_t j0 = begin; j0 < end; j0 += 32) {
    const int64_t j = j0 + lane;
    float score = -INFINITY;
    if (j < end) {
      score = 0;
      for (int64_t i = 0; i < d; ++i) {
        load<1>(keys, base + j, i, x);
        score += query[i] * x[0];
      }
      if (view.cap > 0) score = view.cap * tanhf(score / view.cap);
      score *= view.scale;
    }
    const auto step = softmax.take(score, softmax.largest_with(score));
    const int n = static_cast<int>(end - j0 < 32 ? end - j0 : 32);
    add_values<false>(sum, d, step, n, [&](int key, int64_t column) {
      float value[1];
      load<1>(values, base + j0 + key, column, value);
      return value[0];
    });
  }
  for (int64_t i = lane; i < d; i += 32) {
    x[0] = sum[i] / softmax.total;
    store<1>(out, row, head * d + i, x);
  }
}

}  // namespace

void attend_plain(Context& context, DType dtype, const AttendView& view) {
  const dim3 grid(static_cast<unsigned>(view.n_batch * view.n_tokens),
                  static_cast<unsigned>(ceil_div(view.n_heads, kWarps)));
  const auto bytes = static_cast<size_t>(2 * kWarps * view.head_dim) * sizeof(float);
  SLUICE_CHECK(bytes <= 48 * 1024);
  plain<<<grid, 32 * kWarps, bytes, context.stream()>>>(view, dtype == DType::kBF16);
  check_launch("plain");
}

}  // namespace sluice::impl::cuda::dense
