#include "backend/cpu/gemm/blocks/tiled_product.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "backend/cpu/gemm/blocks/layout.h"
#include "backend/cpu/gemm/blocks/tile_activations.h"
#include "backend/cpu/gemm/blocks/unpacked_panels.h"
#include "backend/cpu/gemm/gemm.h"
#include "backend/cpu/primitives/rows.h"
#include "core/threads.h"

namespace sluice::impl::cpu::gemm {
namespace {

// Rows that share unpacked groups: with 1536 inputs they take 480 KiB, half of a second cache.
constexpr int64_t kTiledRows = 256;
// Inputs in one pass: with more, sums go to memory in between. A multiple of every block.
constexpr int64_t kDepth = 1536;
// Unpacked panels of one pass take at most this, half of a first cache, or are one panel: those of
// VNNI take 81 KiB and more, and are read from the second cache.
constexpr int64_t kPassBytes = 32 << 10;
// Groups whose sums are kept for one epilogue: as many as this, or as four panels have.
constexpr int64_t kSlabGroups = 8, kSlabPanels = 4;
constexpr int64_t kMostSlabGroups = 24;

// Sums of a thread: (rows of x, groups of a slab, 8).
struct Sums {
  float* at(int64_t row, int64_t group) const { return data + row * stride + group * kGroupRows; }
  float* data;
  int64_t stride;
};

// Adds the products of outliers in [k, k + depth), which `n_groups` groups are unpacked of.
void add_outliers(const TiledRows& x, int64_t k, int64_t depth, const UnpackedPanels& unpacked,
                  int64_t n_groups, const Sums& sums) {
  std::array<float, kMostSlabGroups * kGroupRows> column{};
  int64_t of_column = -1;
  for (const Outlier& outlier : x.outliers(k, k + depth)) {
    if (outlier.k != of_column) unpacked.read_column(outlier.k - k, n_groups, column.data());
    of_column = outlier.k;
    primitives::add_multiple(outlier.value, column.data(), n_groups * kGroupRows,
                             sums.at(outlier.row, 0));
  }
}

// Groups [first, first + n_groups) with all rows, in sums of those groups.
void multiply_pass(const TiledProductArgs& args, const TiledRows& x, int64_t first,
                   int64_t n_groups, const UnpackedPanels& unpacked, const Sums& sums) {
  const BlockLayout layout = make_block_layout(args.type);
  const UnpackFunction unpack = args.kernel->unpack(args.type);
  const BlockTileFunction tile = args.kernel->tile(args.type);
  const int64_t panel = args.kernel->panel_groups;
  std::array<UnpackedGroup, kMostSlabGroups> groups;
  for (int64_t g = 0; g < n_groups; ++g) groups[static_cast<size_t>(g)] = unpacked.group(g);
  for (int64_t k = 0; k < args.n_in; k += kDepth) {
    const int64_t depth = std::min(kDepth, args.n_in - k), b = k / kSubBlock;
    for (int64_t g = 0; g < n_groups; ++g)
      unpack(args.groups + (first + g) * args.group_bytes + k / layout.block * layout.bytes,
             depth / layout.block, groups[static_cast<size_t>(g)]);
    for (int64_t t = 0; t < x.tiles(); ++t) {
      BlockTileArgs call = x.tile(t, b);
      call.n = depth / kSubBlock;
      call.out_stride = sums.stride;
      call.accumulate = k > 0;
      for (int64_t g = 0; g < n_groups; g += panel) {
        call.w = groups[static_cast<size_t>(g)];
        call.groups = std::min(panel, n_groups - g);
        call.out = sums.at(t * kTileX, g);
        tile(call);
      }
    }
    add_outliers(x, k, depth, unpacked, n_groups, sums);
  }
}

// Groups [begin, end) with rows [first_row, first_row + n_rows), which x holds.
void multiply_groups(const TiledProductArgs& args, const TiledRows& x, int64_t first_row,
                     int64_t n_rows, int64_t begin, int64_t end) {
  thread_local std::vector<float> scratch;
  const int64_t slab = std::max(kSlabGroups, kSlabPanels * args.kernel->panel_groups);
  SLUICE_CHECK(slab <= kMostSlabGroups && slab % args.kernel->panel_groups == 0);
  const UnpackedPanels unpacked(*args.kernel, args.type, std::min(args.n_in, kDepth), kPassBytes,
                                slab);
  const int64_t stride = slab * kGroupRows;
  scratch.resize(std::max(scratch.size(), static_cast<size_t>(x.tiles() * kTileX * stride)));
  const Sums sums{scratch.data(), stride};
  for (int64_t first = begin; first < end; first += slab) {
    const int64_t last = std::min(end, first + slab);
    for (int64_t group = first; group < last; group += unpacked.capacity())
      multiply_pass(args, x, group, std::min(unpacked.capacity(), last - group), unpacked,
                    {sums.at(0, group - first), stride});
    const int64_t column = first * kGroupRows;
    for (int64_t row = 0; row < n_rows; ++row)
      finish_row({.linear = args.linear,
                  .bias = args.bias,
                  .row = first_row + row,
                  .column = column,
                  .n = std::min(last * kGroupRows, args.n_out) - column,
                  .sums = sums.at(row, 0)});
  }
}

}  // namespace

const BlockTileKernel* block_tiles(DType type) {
  if (kernel_amx() != nullptr) return nullptr;
  for (const BlockTileKernel* kernel :
       {block_tiles_i8mm(), block_tiles_dotprod(), block_tiles_vnni(), block_tiles_avx512(),
        block_tiles_avx2()})
    if (kernel != nullptr && kernel->tile(type) != nullptr) return kernel;
  return nullptr;
}

void multiply_by_tiles(const TiledProductArgs& args) {
  thread_local TiledRows of_caller;
  TiledRows& x = of_caller;  // of this thread in all of them
  const BlockLayout layout = make_block_layout(args.type);
  const BlockTileKernel& kernel = *args.kernel;
  const RowSums sums{.products = kernel.minima || layout.minima,
                     .offset = kernel.unsigned_weights ? unsigned_offset(layout) : 0,
                     .scale_width = layout.scale_width};
  const int64_t n_rows = args.linear->x.rows();
  for (int64_t row = 0; row < n_rows; row += kTiledRows) {
    const int64_t n = std::min(kTiledRows, n_rows - row);
    x.set(args.linear->x, row, n, sums);
    parallel_for((args.n_out + kGroupRows - 1) / kGroupRows, 1,
                 [&](int64_t begin, int64_t end) { multiply_groups(args, x, row, n, begin, end); });
  }
}

}  // namespace sluice::impl::cpu::gemm
