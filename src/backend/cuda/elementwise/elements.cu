// Look-ups, gates, rotary embedding, copies and conversions: one block for a stretch of a row.

#include "backend/cuda/elementwise/elements.h"
#include "backend/cuda/primitives/element.cuh"
#include "backend/cuda/primitives/rotary.cuh"
#include "backend/cuda/runtime/dependent_launch.cuh"

namespace sluice::impl::cuda::elementwise {
namespace {

// Blocks of rows and of column groups, kN columns to a thread.
struct Launch {
  dim3 grid;
  int threads;
};

Launch over_rows(int64_t n_rows, int64_t n_columns, int64_t per_thread) {
  const int64_t groups = ceil_div(n_columns, per_thread);
  const int threads = groups >= 256 ? 256 : static_cast<int>(round_up(groups, 32));
  return {dim3(static_cast<unsigned>(n_rows), static_cast<unsigned>(ceil_div(groups, threads))),
          threads};
}

// Programmatic dependent launch: small kernels would otherwise take as long to launch as to run.
__device__ void overlap_launches() {
  launch_dependents();
  wait_on_dependency();
}

template <int kN>
__device__ int64_t my_column() {
  return (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kN;
}

template <int kN>
__global__ void embed_rows(ConstRowsView table, const int32_t* ids, float scale, int32_t zero_id,
                           bool accumulate, RowsView out, int64_t d) {
  overlap_launches();
  const int64_t row = blockIdx.x, column = my_column<kN>();
  if (column >= d) return;
  const int32_t id = ids[row];
  float value[kN], old[kN];
  load<kN>(table, id, column, value);
  if (accumulate) load<kN>(out, row, column, old);
  // Two roundings, as in the reference: not one fused operation.
  for (int i = 0; i < kN; ++i) value[i] = id == zero_id ? 0.0f : __fmul_rn(value[i], scale);
  if (accumulate)
    for (int i = 0; i < kN; ++i) value[i] = __fadd_rn(old[i], value[i]);
  store<kN>(out, row, column, value);
}

template <int kN>
__global__ void gate_rows(Activation activation, ConstRowsView gate_up, RowsView out,
                          int64_t d_inner) {
  overlap_launches();
  const int64_t row = blockIdx.x, column = my_column<kN>();
  if (column >= d_inner) return;
  float gate[kN], up[kN];
  load<kN>(gate_up, row, column, gate);
  load<kN>(gate_up, row, d_inner + column, up);
  for (int i = 0; i < kN; ++i) gate[i] = activate(activation, gate[i]) * up[i];
  store<kN>(out, row, column, gate);
}

template <int kN>
__global__ void cap_rows(float cap, RowsView x, int64_t d) {
  overlap_launches();
  const int64_t row = blockIdx.x, column = my_column<kN>();
  if (column >= d) return;
  float value[kN];
  load<kN>(x, row, column, value);
  for (int i = 0; i < kN; ++i) value[i] = cap * tanhf(value[i] / cap);
  store<kN>(x, row, column, value);
}

// rows null: row for row. add: to what is there.
template <int kN>
__global__ void copy_rows(ConstRowsView from, const int32_t* rows, bool add, RowsView to,
                          int64_t d) {
  overlap_launches();
  const int64_t row = blockIdx.x, column = my_column<kN>();
  if (column >= d) return;
  float value[kN], old[kN];
  load<kN>(from, rows == nullptr ? row : rows[row], column, value);
  if (add) {
    load<kN>(to, row, column, old);
    for (int i = 0; i < kN; ++i) value[i] += old[i];
  }
  store<kN>(to, row, column, value);
}

__global__ void rotate_rows(RotaryStyle style, ConstRowsView cosine, ConstRowsView sine,
                            int64_t half, const int32_t* positions, int64_t n_tokens,
                            FirstPosition first, RowsView x, int64_t n_heads, int64_t head_dim) {
  overlap_launches();
  const int64_t row = blockIdx.x, pair = my_column<1>();
  if (pair >= n_heads * half) return;
  const int64_t position = positions == nullptr ? first.get() + row % n_tokens : positions[row];
  const int64_t head = pair / half, i = pair % half;
  const bool halves = style == RotaryStyle::kHalves;
  const int64_t a = head * head_dim + (halves ? i : 2 * i);
  const int64_t b = head * head_dim + (halves ? i + half : 2 * i + 1);
  float c[1], s[1], left[1], right[1];
  load<1>(cosine, position, i, c);
  load<1>(sine, position, i, s);
  load<1>(x, row, a, left);
  load<1>(x, row, b, right);
  const RotatedPair rotated_pair = rotate_pair(left[0], right[0], c[0], s[0]);
  const float rotated[2][1] = {{rotated_pair.left}, {rotated_pair.right}};
  store<1>(x, row, a, rotated[0]);
  store<1>(x, row, b, rotated[1]);
}

struct StoreView {
  ConstRowsView from[2];  // keys and values
  RowsView to[2];
  int32_t n_rows, n_tokens, n_kv_heads, head_dim;
  int64_t capacity;
};
// Of keys (blockIdx.z 0) or values (1), kRows tokens to a block.
template <int kN, int kRows>
__global__ void store_rows(const __grid_constant__ StoreView view, FirstPosition first) {
  overlap_launches();
  const auto column = static_cast<int32_t>(my_column<kN>());
  if (column >= view.n_kv_heads * view.head_dim) return;
  const ConstRowsView& from = view.from[blockIdx.z];
  const RowsView& to = view.to[blockIdx.z];
  const int32_t head = column / view.head_dim, n_tokens = view.n_tokens;
  const int32_t begin = static_cast<int32_t>(blockIdx.x) * kRows;
  const int64_t position = first.get();
  float value[kRows][kN];
#pragma unroll
  for (int i = 0; i < kRows; ++i)
    if (begin + i < view.n_rows) load<kN>(from, begin + i, column, value[i]);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int32_t row = begin + i;
    if (row >= view.n_rows) break;
    const int32_t sequence = row / n_tokens;
    const int64_t place = (int64_t{sequence} * view.n_kv_heads + head) * view.capacity + position +
                          (row - sequence * n_tokens);
    store<kN>(to, place, column - head * view.head_dim, value[i]);
  }
}

constexpr int kTile = 32;

__global__ void transpose_rows(ConstRowsView from, int64_t n_rows, int64_t d, int64_t first,
                               RowsView to) {
  __shared__ float tile[kTile][kTile + 1];
  const int64_t row0 = int64_t{blockIdx.x} * kTile, column0 = int64_t{blockIdx.y} * kTile;
  for (int i = static_cast<int>(threadIdx.y); i < kTile; i += static_cast<int>(blockDim.y)) {
    float value[1] = {0};
    if (row0 + i < n_rows && column0 + threadIdx.x < d)
      load<1>(from, row0 + i, column0 + threadIdx.x, value);
    tile[i][threadIdx.x] = value[0];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.y); i < kTile; i += static_cast<int>(blockDim.y)) {
    if (column0 + i >= d || row0 + threadIdx.x >= n_rows) continue;
    const float value[1] = {tile[threadIdx.x][i]};
    store<1>(to, column0 + i, first + row0 + threadIdx.x, value);
  }
}

__global__ void mark_inexact(ConstRowsView x, int64_t d, int32_t* inexact) {
  const int64_t column = my_column<1>();
  if (column >= d) return;
  float value[1];
  load<1>(x, blockIdx.x, column, value);
  if ((__float_as_uint(value[0]) & 0xffffu) != 0) *inexact = 1;
}

// kernel<8> where everything is aligned for it, else kernel<1>.
#define SLUICE_LAUNCH_ROWS(kernel, eights, launch_rows, launch_columns, ...)             \
  do {                                                                                   \
    const Launch launch = over_rows(launch_rows, launch_columns, (eights) ? 8 : 1);      \
    if (launch.grid.x == 0 || launch.grid.y == 0) return;                                \
    launch_programmatic(context, #kernel, (eights) ? kernel<8> : kernel<1>, launch.grid, \
                        launch.threads, __VA_ARGS__);                                    \
  } while (false)

void copy(Context& context, const ConstTensor& from, const int32_t* rows, bool add,
          const Tensor& to) {
  const int64_t d = to.row_elements();
  const bool eights = by_eights(from) && by_eights(to);
  SLUICE_LAUNCH_ROWS(copy_rows, eights, to.rows(), d, view_of(from), rows, add, view_of(to), d);
}

}  // namespace

void embed(Context& context, const EmbedRows& args) {
  const int64_t d = args.out.row_elements();
  const bool eights = by_eights(args.table) && by_eights(args.out);
  SLUICE_LAUNCH_ROWS(embed_rows, eights, args.out.rows(), d, view_of(args.table), args.ids,
                     args.scale, args.zero_id, args.accumulate, view_of(args.out), d);
}

void glu(Context& context, const GluArgs& args) {
  const int64_t d = args.out.row_elements();
  const bool eights = by_eights(args.gate_up) && by_eights(args.out);
  SLUICE_LAUNCH_ROWS(gate_rows, eights, args.out.rows(), d, args.activation, view_of(args.gate_up),
                     view_of(args.out), d);
}

void soft_cap(Context& context, float cap, Tensor x) {
  const int64_t d = x.row_elements();
  SLUICE_LAUNCH_ROWS(cap_rows, by_eights(x), x.rows(), d, cap, view_of(x), d);
}

void convert(Context& context, ConstTensor from, Tensor to) {
  copy(context, from, nullptr, false, to);
}
void gather_rows(Context& context, ConstTensor from, const int32_t* rows, Tensor to) {
  copy(context, from, rows, false, to);
}
void add_rows(Context& context, ConstTensor from, const int32_t* rows, Tensor to) {
  copy(context, from, rows, true, to);
}

void rotate(Context& context, const RotaryArgs& args, const int32_t* positions) {
  const int64_t n_heads = args.x.shape()[1], head_dim = args.x.shape()[2];
  const int64_t half = args.cosine.shape()[1];
  const Launch launch = over_rows(args.x.rows(), n_heads * half, 1);
  if (launch.grid.x == 0 || launch.grid.y == 0) return;
  launch_programmatic(
      context, "rotate_rows", rotate_rows, launch.grid, launch.threads, args.style,
      view_of(args.cosine), view_of(args.sine), half, positions, args.n_tokens,
      positions == nullptr ? first_position_of(context, args.first_position) : FirstPosition{},
      view_of(args.x), n_heads, head_dim);
}

void store_kv(Context& context, const StoreKvArgs& args) {
  const Shape& s = args.cache.keys.shape();
  const Tensor keys = args.cache.keys.reshaped({s[0] * s[1] * s[2], s[3]});
  const Tensor values = args.cache.values.reshaped({s[0] * s[1] * s[2], s[3]});
  const bool eights =
      by_eights(args.keys) && by_eights(args.values) && by_eights(keys) && by_eights(values);
  const int64_t n_rows = args.keys.rows();
  SLUICE_CHECK(n_rows <= INT32_MAX && s[1] * s[3] <= INT32_MAX);
  // Many tokens saturate memory bandwidth only if a thread has several loads in flight.
  constexpr int kMany = 8;
  const bool many = n_rows >= 64 * kMany;
  Launch launch = over_rows(many ? ceil_div(n_rows, kMany) : n_rows, s[1] * s[3], eights ? 8 : 1);
  if (launch.grid.x == 0 || launch.grid.y == 0) return;
  launch.grid.z = 2;
  const auto kernel = eights ? (many ? store_rows<8, kMany> : store_rows<8, 1>)
                             : (many ? store_rows<1, kMany> : store_rows<1, 1>);
  const StoreView view{{view_of(args.keys), view_of(args.values)},
                       {view_of(keys), view_of(values)},
                       static_cast<int32_t>(n_rows),
                       static_cast<int32_t>(args.n_tokens),
                       static_cast<int32_t>(s[1]),
                       static_cast<int32_t>(s[3]),
                       s[2]};
  launch_programmatic(context, "store_rows", kernel, launch.grid, launch.threads, view,
                      first_position_of(context, args.first_position));
}

void transpose_into(Context& context, ConstTensor from, int64_t first, Tensor to) {
  const int64_t n = from.rows(), d = from.row_elements();
  // The second axis of a grid is short, and so are rows.
  const dim3 grid(static_cast<unsigned>(ceil_div(n, kTile)),
                  static_cast<unsigned>(ceil_div(d, kTile)));
  transpose_rows<<<grid, dim3(kTile, 8), 0, context.stream()>>>(view_of(from), n, d, first,
                                                                view_of(to));
  check_launch("transpose_rows");
}

void find_inexact(Context& context, ConstTensor x, int32_t* inexact) {
  const Launch launch = over_rows(x.rows(), x.row_elements(), 1);
  mark_inexact<<<launch.grid, launch.threads, 0, context.stream()>>>(view_of(x), x.row_elements(),
                                                                     inexact);
  check_launch("mark_inexact");
}

}  // namespace sluice::impl::cuda::elementwise
