// Mode `keys`, one query and one head to a warp, in f32 throughout: for parity in f32, and for
// heads that the tensor cores cannot take.

#include "backend/cuda/attention/dense/plain.cuh"
#include "backend/cuda/attention/keys/rows.cuh"

namespace sluice::impl::cuda::keys {
namespace {

using namespace dense;

constexpr int kWarps = 4;

// A key and its value, and what is added to the score.
struct Place {
  const std::byte* key;
  const std::byte* value;
  float bias;
};

// Takes in n keys; place(j) tells where key j is.
template <typename PlaceOf>
__device__ void take_keys(const KeysView& view, bool bf16, int64_t n, const PlaceOf& place,
                          const float* query, float* sum, WarpSoftmax& softmax) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t d = view.heads.head_dim;
  float x[1];
  for (int64_t j0 = 0; j0 < n; j0 += 32) {
    float score = -INFINITY;
    if (j0 + lane < n) {
      const Place at = place(j0 + lane);
      float dot = 0;
      for (int64_t i = 0; i < d; ++i) {
        load<1>(ConstRowsView{at.key, 0, bf16}, 0, i, x);
        dot += query[i] * x[0];
      }
      score = (dot + at.bias) * view.heads.scale;
    }
    const auto step = softmax.take(score, softmax.largest_with(score));
    const int n_here = static_cast<int>(n - j0 < 32 ? n - j0 : 32);
    add_values<false>(sum, d, step, n_here, [&](int key, int64_t column) {
      float value[1];
      load<1>(ConstRowsView{place(j0 + key).value, 0, bf16}, 0, column, value);
      return value[0];
    });
    __syncwarp();
  }
}

// Shared memory: kWarps queries and kWarps rows of sums, head_dim each. A row of blocks to a tile.
__global__ void keys_plain(const __grid_constant__ KeysView view, bool bf16) {
  extern __shared__ float shared[];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t d = view.heads.head_dim, head = int64_t{blockIdx.y} * kWarps + warp;
  if (head >= view.heads.n_heads) return;
  const QueryTile tile = tile_at(view, blockIdx.x / kKeysTileRows);
  const int64_t in_tile = blockIdx.x % kKeysTileRows;
  if (in_tile >= tile.n) return;
  const int64_t row = tile.row + in_tile, position = query_position(view, row);
  const int64_t kv_head = head / (view.heads.group());
  const SeenKeys seen = keys_of(view, tile, kv_head);
  const int64_t size = bf16 ? 2 : 4;
  const HeadRows keys = head_rows(view, false, kv_head, size);
  const HeadRows values = head_rows(view, true, kv_head, size);
  float* query = shared + warp * d;
  float* sum = shared + (kWarps + warp) * d;
  float x[1];
  for (int64_t i = lane; i < d; i += 32) {
    load<1>(ConstRowsView{view.queries.data, view.queries.stride, bf16}, row, head * d + i, x);
    query[i] = x[0];
    sum[i] = 0;
  }
  __syncwarp();
  WarpSoftmax softmax;
  const auto far = [&](int64_t j) -> Place {
    const int32_t from = seen.far_row(j);
    return {keys.far(from), values.far(from), seen.bias[j]};
  };
  take_keys(view, bf16, seen.n_far, far, query, sum, softmax);
  const int64_t end = view.heads.causal ? position + 1 : seen.near_end;
  const auto near = [&](int64_t j) -> Place {
    const int32_t from = seen.near_row(seen.near_begin + j);
    return {keys.far(from), values.far(from), 0.0f};
  };
  take_keys(view, bf16, end - seen.near_begin, near, query, sum, softmax);
  if (lane == 0) store_log_sum(view, row, head, softmax.largest + logf(softmax.total));
  for (int64_t i = lane; i < d; i += 32) {
    x[0] = sum[i] / softmax.total;
    store<1>(RowsView{view.queries.out, view.queries.out_stride, bf16}, row, head * d + i, x);
  }
}

}  // namespace

void attend_keys_plain(Context& context, const KeysView& view, bool bf16) {
  const dim3 grid(static_cast<unsigned>(view.tiles.n * kKeysTileRows),
                  static_cast<unsigned>(ceil_div(view.heads.n_heads, kWarps)));
  const auto bytes = static_cast<size_t>(2 * kWarps * view.heads.head_dim) * sizeof(float);
  SLUICE_CHECK(bytes <= 48 * 1024);
  keys_plain<<<grid, 32 * kWarps, bytes, context.stream()>>>(view, bf16);
  check_launch("keys_plain");
}

}  // namespace sluice::impl::cuda::keys
