// The tokens of a chunk that others are compared with in cascade-cover (selection/cover/cover.cu),
// and their rows, put together.

#include <algorithm>

#include "backend/cuda/runtime/dependent_launch.cuh"
#include "backend/cuda/selection/common/marks.cuh"
#include "backend/cuda/selection/common/outliers.cuh"
#include "backend/cuda/selection/common/table.cuh"

namespace sluice::impl::cuda::selection {
namespace {

constexpr int kColumns = kHopperGramColumns;

// A thread's tokens that a set inherits. Exempt ones among them will count for nobody.
__device__ uint32_t inherited_by_any(const ChunkView& view) {
  uint32_t any = 0;
  for (int set = 0; set < view.n_sets; ++set)
    if (view.thresholds[set] > 0) any |= bits_inherited(view, set);
  return any;
}

__device__ uint32_t all_tokens(const ChunkView& view) {
  const int64_t left = view.n - int64_t{threadIdx.x} * 32;
  return left >= 32 ? ~0u : left > 0 ? (1u << left) - 1 : 0;
}

// Those that are open in a set, and not listed already because another set inherits them.
__device__ uint32_t open_in_any(const CoverView& view) {
  uint32_t any = 0;
  for (int set = 0; set < view.chunk.n_sets; ++set)
    any |= bits_equal(view.decision + set * view.chunk.n, view.chunk.n,
                      static_cast<uint8_t>(CoverDecision::kOpen));
  return view.chunk.n_sets == 1 ? any : any & ~inherited_by_any(view.chunk);
}

// Pairs, without the padding of tiles and without second looks: a listed token meets those behind
// it. By the first block.
__device__ void count_products(const CoverView& view, const TokenTable& table, int n_columns) {
  const int64_t n = view.chunk.n;
  if (blockIdx.x != 0 || threadIdx.x >= TokenTable::kWords) return;
  int64_t products = threadIdx.x == 0 ? n * n_columns : 0;
  for (uint32_t left = table.words[threadIdx.x]; left != 0; left &= left - 1)
    products += n - 1 - (int64_t{threadIdx.x} * 32 + __ffs(static_cast<int>(left)) - 1);
  for (int step = 16; step > 0; step /= 2) products += __shfl_xor_sync(kAllLanes, products, step);
  if (threadIdx.x % 32 == 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(view.products),
              static_cast<unsigned long long>(products));
}

// Whether a chunk is looked at in a basis; and begins to count. Coordinates take as long as
// products with as many columns as there are directions.
__device__ bool begin_basis(const CoverView& view, const TableBlocks& blocks, int64_t n_listed) {
  if (view.basis.rank == 0) return false;
  BasisProgress& progress = *view.basis.progress;
  const bool pays = *view.chunk.kept.n + n_listed / 2 >= 2 * view.basis.rank;
  const bool used = view.basis.always || (pays && progress.given_up == 0);
  blocks.clear(view.basis.open, view.basis.n_items);
  blocks.clear(view.basis.below, view.basis.n_items);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    progress.used = used ? 1 : 0;
    for (int list = 0; list < 2; ++list) progress.n_items[list] = progress.n_again[list] = 0;
  }
  return used;
}

__device__ void put_rank(const ListedTokens& list, const TokenTable& table, int64_t t) {
  const int rank = table.rank(t);
  list.rank[t] = rank;
  list.token[table.has(t) ? rank : table.total + t - rank] = static_cast<int32_t>(t);
}

// A row for the tensor cores, and for a list where it is on one; by a warp.
template <int kN>
__device__ void put_row(const CoverView& view, const ConstRowsView& rows, int64_t t,
                        uint16_t* listed) {
  const ChunkView& chunk = view.chunk;
  const double inverse = view.given_inverse[t], power = range_scale(inverse);
  const RowsView row{reinterpret_cast<std::byte*>(view.rows), chunk.padded, true};
  const RowsView column{reinterpret_cast<std::byte*>(listed), 0, true};
  constexpr int kAhead = 2;
  for (int64_t first = threadIdx.x % 32 * kN; first < chunk.padded; first += kAhead * 32 * kN) {
    float x[kAhead][kN] = {};
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int64_t i = first + j * 32 * kN;
      if (i < chunk.d && inverse > 0) load<kN>(rows, t, i, x[j]);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int64_t i = first + j * 32 * kN;
      if (i >= chunk.padded) continue;
      if (power != 1)
        for (int k = 0; k < kN; ++k) x[j][k] = static_cast<float>(double{x[j][k]} * power);
      store<kN>(row, t, i, x[j]);
      if (listed != nullptr) store<kN>(column, 0, i, x[j]);
    }
  }
}

// Rows of the first list as they were given, but for those without a norm, which are zeros.
__device__ void copy_given(const CoverView& view, const TableBlocks& blocks,
                           const TokenTable& table) {
  const ChunkView& chunk = view.chunk;
  blocks.for_pieces(table, chunk.padded, [&](int64_t t, int64_t at, int first, int width) {
    uint16_t* to = view.listed + at * chunk.padded + first;
    const bool has_norm = view.given_inverse[t] > 0;
    copy_row(to, chunk.rows.given + t * chunk.rows.given_stride + first, width);
    for (int i = static_cast<int>(threadIdx.x) % 32; !has_norm && i < width / 8; i += 32)
      reinterpret_cast<uint4*>(to)[i] = make_uint4(0, 0, 0, 0);
  });
}

// The first list, by n_blocks; others say who is exempt, which nobody asks before. kN: how many
// elements a thread takes at a time, 1 or 8.
constexpr int kExemptBlocks = 8;
template <int kN>
__global__ void __launch_bounds__(kTableThreads, 2)
    list_first(const __grid_constant__ CoverView view, ConstRowsView rows, int n_blocks) {
  __shared__ TokenTable table;
  __shared__ SortedNorms norms;
  wait_on_dependency();
  launch_dependents();
  const TableBlocks blocks{static_cast<int>(blockIdx.x), n_blocks};
  if (blocks.number >= n_blocks)
    return mark_exempt(view.exempt, norms, blocks.number - n_blocks,
                       static_cast<int>(gridDim.x) - n_blocks);
  const ChunkView& chunk = view.chunk;
  const bool prepared = !as_given(chunk);
  table.fill(view.whole ? all_tokens(chunk) : inherited_by_any(chunk));
  const bool coordinates = begin_basis(view, blocks, table.total);
  const bool copied = !view.whole && !coordinates;  // rows of the list
  if (!prepared && copied) copy_given(view, blocks, table);
  blocks.clear(view.marks, 2 * chunk.n_sets * view.mark_tiles * kPieces);
  blocks.clear(view.some, chunk.n_sets * chunk.n * view.words);
  blocks.for_tokens(chunk.n, [&](int64_t t) {
    const double inverse = view.given_inverse[t];
    const double rest = inverse > 0 ? inverse / range_scale(inverse) : 0.0;
    put_rank(view.lists[0], table, t);
    view.scale[t] = static_cast<float>(rest);
    view.inverse[t] = rest;
    if (table.has(t) && !view.whole) view.listed_scale[table.rank(t)] = static_cast<float>(rest);
  });
  if (blocks.is_first() && threadIdx.x == 0) {
    view.lists[0].rank[chunk.n] = table.total;
    view.tickets[0] = view.tickets[1] = 0;
  }
  if (prepared)
    blocks.for_rows(chunk.n, [&](int64_t t) {
      put_row<kN>(view, rows, t,
                  copied && table.has(t) ? view.listed + table.rank(t) * chunk.padded : nullptr);
    });
  count_products(view, table, *chunk.kept.n);
}

// The second list, behind the first; and which listed tokens are decided: all but the open ones.
__global__ void __launch_bounds__(kTableThreads, 2)
    list_second(const __grid_constant__ CoverView view) {
  __shared__ TokenTable table;
  wait_on_dependency();
  launch_dependents();
  const TableBlocks blocks = TableBlocks::all();
  const ChunkView& chunk = view.chunk;
  const BasisView& basis = view.basis;
  const ListedTokens& first = view.lists[0];
  const int first_tiles = tiles_of(first.rank[chunk.n]);
  const bool coordinates = in_basis(basis);
  table.fill(open_in_any(view));
  const int64_t first_column = int64_t{first_tiles} * kColumns;
  blocks.for_pieces(table, chunk.padded, [&](int64_t t, int64_t at, int from, int width) {
    copy_row(view.listed + (first_column + at) * chunk.padded + from, matrix_row(chunk, t) + from,
             width);
  });
  if (coordinates)
    blocks.for_pieces(table, basis.width, [&](int64_t t, int64_t at, int from, int width) {
      copy_row(basis.listed + (first_column + at) * basis.width + from,
               basis.rows + t * basis.width + from, width);
    });
  blocks.for_tokens(chunk.n, [&](int64_t t) {
    put_rank(view.lists[1], table, t);
    const int before = first.rank[t];
    const bool in_second = table.has(t), in_first = first.rank[t + 1] > before;
    if (!in_first && !in_second) return;
    const int at = in_first ? before : table.rank(t);
    for (int set = 0; set < chunk.n_sets; ++set) {
      const auto decision = static_cast<CoverDecision>(view.decision[set * chunk.n + t]);
      if (decision != CoverDecision::kOpen)
        mark(marks_of(view, 1, set), in_first ? 0 : first_tiles, at,
             decision == CoverDecision::kKept);
    }
    if (!in_second) return;
    view.listed_scale[first_column + at] = chunk.rows.scale[t];
    if (coordinates) basis.listed_rest[first_column + at] = basis.rest[t];
  });
  if (blocks.is_first() && threadIdx.x == 0) view.lists[1].rank[chunk.n] = table.total;
  count_products(view, table, 0);
}

// Rows of the first list, where coordinates leave tiles open.
__global__ void __launch_bounds__(kTableThreads, 2)
    copy_first(const __grid_constant__ CoverView view) {
  wait_on_dependency();
  launch_dependents();
  const ChunkView& chunk = view.chunk;
  if (view.basis.progress->n_again[0] == 0) return;
  TableBlocks::all().for_rows(view.lists[0].rank[chunk.n], [&](int64_t at) {
    copy_row(view.listed + at * chunk.padded, matrix_row(chunk, view.lists[0].token[at]),
             chunk.padded);
  });
}

}  // namespace

void list_inherited(Context& context, const CoverView& view, const ConstTensor& rows) {
  // All of them run together.
  const unsigned all = table_blocks(context, view.chunk.n).x;
  const unsigned n_exempt = std::min<unsigned>(kExemptBlocks, all);
  const unsigned n_blocks =
      std::min(all, static_cast<unsigned>(2 * context.multiprocessors()) - n_exempt);
  launch_programmatic(context, "list_first", by_eights(rows) ? list_first<8> : list_first<1>,
                      dim3(n_blocks + n_exempt), kTableThreads, view, view_of(rows),
                      static_cast<int>(n_blocks));
}

void list_open(Context& context, const CoverView& view) {
  launch_programmatic(context, "list_second", list_second, table_blocks(context, view.chunk.n),
                      kTableThreads, view);
}

void copy_listed(Context& context, const CoverView& view) {
  launch_programmatic(context, "copy_first", copy_first, table_blocks(context, view.chunk.n),
                      kTableThreads, view);
}

}  // namespace sluice::impl::cuda::selection
