#include "backend/cpu/gemm/blocks/tiled_product.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "backend/cpu/gemm/blocks/layout.h"
#include "backend/cpu/gemm/blocks/tile_activations.h"
#include "backend/cpu/gemm/gemm.h"
#include "core/threads.h"

namespace sluice::impl::cpu::gemm {
namespace {

// Rows that share unpacked groups: with 1536 inputs they take 480 KiB, half of a second cache.
constexpr int64_t kRowBlock = 256;
// Inputs in one pass: with more, sums go to memory in between. A multiple of every block.
constexpr int64_t kDepth = 1536;
// Unpacked groups of one pass take at most this: half of a first cache.
constexpr int64_t kPassBytes = 32 << 10;
// Groups whose sums are kept for one epilogue.
constexpr int64_t kSlabGroups = 8;

bool has_minima(const TiledProductArgs& args) {
  return args.kernel->minima || make_block_layout(args.type).minima;
}

// Groups unpacked by this thread.
class Unpacked {
 public:
  Unpacked(const TiledProductArgs& args, int64_t depth)
      : depth_(depth),
        n_scales_(depth / make_block_layout(args.type).scale_width * kGroupRows *
                  (args.kernel->pairs ? 2 : 1)) {
    const bool minima = has_minima(args);
    const int64_t bytes =
        depth * kGroupRows + n_scales_ * (minima ? 2 : 1) * int64_t{sizeof(float)};
    capacity_ = std::clamp<int64_t>(kPassBytes / bytes, 1, kSlabGroups);
    weights_.resize(static_cast<size_t>(capacity_ * depth * kGroupRows));
    scales_.resize(static_cast<size_t>(capacity_ * n_scales_));
    if (minima) minima_.resize(scales_.size());
  }

  int64_t capacity() const { return capacity_; }
  // Group `index` of those that there is room for.
  UnpackedGroup group(int64_t index) {
    return {.weights = weights_.data() + index * depth_ * kGroupRows,
            .scales = scales_.data() + index * n_scales_,
            .minima = minima_.empty() ? nullptr : minima_.data() + index * n_scales_};
  }

 private:
  int64_t depth_, n_scales_;  // of a group
  int64_t capacity_ = 0;
  std::vector<int8_t> weights_;
  std::vector<float> scales_, minima_;
};

// Sums of a thread: (rows of x, groups of a slab, 8).
struct Sums {
  float* at(int64_t row, int64_t group) const { return data + row * stride + group * kGroupRows; }
  float* data;
  int64_t stride;
};

// Weight k of the eight rows of a group that `kernel` has unpacked.
void read_column(const BlockTileKernel& kernel, const BlockLayout& layout,
                 const UnpackedGroup& group, int64_t k, float* column) {
  const int64_t together = kernel.together, n_scales = (kernel.pairs ? 2 : 1) * kGroupRows;
  const int8_t* q = group.weights + k / together * kGroupRows * together + k % together;
  const float* scales = group.scales + k / layout.scale_width * n_scales;
  const float* minima = group.minima != nullptr ? group.minima + k / kSubBlock * n_scales : nullptr;
  for (int64_t r = 0; r < kGroupRows; ++r) {
    const int64_t at = kernel.pairs ? r / 2 * 4 + r % 2 : r;
    column[r] = scales[at] * static_cast<float>(q[r * together]);
    if (minima != nullptr) column[r] += minima[at];
  }
}

// Without __restrict GCC 12 makes no vectors of this.
void add_multiple(float factor, const float* __restrict column, int64_t n_groups,
                  float* __restrict to) {
  for (int64_t i = 0; i < n_groups * kGroupRows; ++i) to[i] += factor * column[i];
}

// Adds the products of outliers in [k, k + depth), which `n_groups` groups are unpacked of.
void add_outliers(const TiledProductArgs& args, const TiledRows& x, int64_t k, int64_t depth,
                  Unpacked& unpacked, int64_t n_groups, const Sums& sums) {
  const BlockLayout layout = make_block_layout(args.type);
  std::array<float, kSlabGroups * kGroupRows> column{};
  int64_t of_column = -1;
  for (const Outlier& outlier : x.outliers(k, k + depth)) {
    if (outlier.k != of_column)
      for (int64_t g = 0; g < n_groups; ++g)
        read_column(*args.kernel, layout, unpacked.group(g), outlier.k - k,
                    column.data() + g * kGroupRows);
    of_column = outlier.k;
    add_multiple(outlier.value, column.data(), n_groups, sums.at(outlier.row, 0));
  }
}

// Groups [first, first + n_groups) with all rows, in sums of those groups.
void multiply_pass(const TiledProductArgs& args, const TiledRows& x, int64_t first,
                   int64_t n_groups, Unpacked& unpacked, const Sums& sums) {
  const BlockLayout layout = make_block_layout(args.type);
  const UnpackFunction unpack = args.kernel->unpack(args.type);
  const BlockTileFunction tile = args.kernel->tile(args.type);
  const BlockTileFunction two = args.kernel->two != nullptr ? args.kernel->two(args.type) : nullptr;
  for (int64_t k = 0; k < args.n_in; k += kDepth) {
    const int64_t depth = std::min(kDepth, args.n_in - k), b = k / kSubBlock;
    for (int64_t g = 0; g < n_groups; ++g)
      unpack(args.groups + (first + g) * args.group_bytes + k / layout.block * layout.bytes,
             depth / layout.block, unpacked.group(g));
    for (int64_t t = 0; t < x.tiles(); ++t) {
      BlockTileArgs call = x.tile(t, b);
      call.n = depth / kSubBlock;
      call.out_stride = sums.stride;
      call.accumulate = k > 0;
      for (int64_t g = 0; g < n_groups;) {
        const bool both = two != nullptr && g + 1 < n_groups;
        call.w = unpacked.group(g);
        if (both) call.next = unpacked.group(g + 1);
        call.out = sums.at(t * kTileX, g);
        (both ? two : tile)(call);
        g += both ? 2 : 1;
      }
    }
    add_outliers(args, x, k, depth, unpacked, n_groups, sums);
  }
}

// Groups [begin, end) with rows [first_row, first_row + n_rows), which x holds.
void multiply_groups(const TiledProductArgs& args, const TiledRows& x, int64_t first_row,
                     int64_t n_rows, int64_t begin, int64_t end) {
  thread_local std::vector<float> scratch;
  const Sums slab{nullptr, kSlabGroups * kGroupRows};
  scratch.resize(std::max(scratch.size(), static_cast<size_t>(x.tiles() * kTileX * slab.stride)));
  Unpacked unpacked(args, std::min(args.n_in, kDepth));
  for (int64_t first = begin; first < end; first += kSlabGroups) {
    const int64_t last = std::min(end, first + kSlabGroups);
    for (int64_t group = first; group < last; group += unpacked.capacity())
      multiply_pass(args, x, group, std::min(unpacked.capacity(), last - group), unpacked,
                    {scratch.data() + (group - first) * kGroupRows, slab.stride});
    const int64_t column = first * kGroupRows;
    for (int64_t row = 0; row < n_rows; ++row)
      finish_row({.linear = args.linear,
                  .bias = args.bias,
                  .row = first_row + row,
                  .column = column,
                  .n = std::min(last * kGroupRows, args.n_out) - column,
                  .sums = scratch.data() + row * slab.stride});
  }
}

}  // namespace

const BlockTileKernel* block_tiles(DType type) {
  if (kernel_amx() != nullptr) return nullptr;
  for (const BlockTileKernel* kernel :
       {block_tiles_i8mm(), block_tiles_dotprod(), block_tiles_avx512(), block_tiles_avx2()})
    if (kernel != nullptr && kernel->tile(type) != nullptr) return kernel;
  return nullptr;
}

void multiply_by_tiles(const TiledProductArgs& args) {
  thread_local TiledRows of_caller;
  TiledRows& x = of_caller;  // of this thread in all of them
  const bool products = has_minima(args);
  const int64_t n_rows = args.linear->x.rows();
  for (int64_t row = 0; row < n_rows; row += kRowBlock) {
    const int64_t n = std::min(kRowBlock, n_rows - row);
    x.set(args.linear->x, row, n, products);
    parallel_for((args.n_out + kGroupRows - 1) / kGroupRows, 1,
                 [&](int64_t begin, int64_t end) { multiply_groups(args, x, row, n, begin, end); });
  }
}

}  // namespace sluice::impl::cpu::gemm
