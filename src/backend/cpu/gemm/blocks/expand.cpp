#include "backend/cpu/gemm/blocks/expand.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "backend/cpu/gemm/blocks/expand_tile.h"
#include "backend/cpu/gemm/blocks/layout.h"
#include "backend/cpu/primitives/rows.h"
#include "core/error.h"

namespace sluice::impl::cpu::gemm {
namespace {

constexpr int64_t kTile = kSubBlock * kGroupRows;

float half_at(const uint8_t* p) {
  uint16_t bits = 0;
  std::memcpy(&bits, p, sizeof(bits));
  return half_to_float(bits);
}

// Scales and minima of a group's block as floats, one to a row and scale_width weights.
struct Scales {
  std::array<float, 16 * kGroupRows> scale, minimum;  // (scales, rows)
};

void read_scales(const BlockLayout& layout, const uint8_t* block, Scales& out) {
  const int64_t n = layout.block / layout.scale_width;
  for (int64_t r = 0; r < kGroupRows; ++r) {
    const float d = half_at(block + 2 * r);
    const float m = layout.minima ? half_at(block + 2 * (kGroupRows + r)) : 0.0f;
    for (int64_t s = 0; s < n; ++s) {
      const auto at = static_cast<size_t>(s * kGroupRows + r);
      out.scale[at] = d;
      out.minimum[at] = m;
      if (layout.scales == 0) continue;
      const uint8_t* scales = block + layout.scales;
      const int scale = layout.minima ? scales[at] : static_cast<int8_t>(scales[at]);
      out.scale[at] = d * static_cast<float>(scale);
      if (layout.minima) out.minimum[at] = -(m * static_cast<float>(scales[64 + at]));
    }
  }
}

// Where the rows of a group lie in the panels, at args.k; null for rows outside of them.
template <typename T>
using RowTargets = std::array<T*, kGroupRows>;

template <typename T>
RowTargets<T> targets_of(const ExpandArgs& args, int64_t row) {
  const int64_t nr = args.kernel->nr, kq = args.kernel->kq;
  const int64_t last = std::min(args.first_column + args.n_columns, args.n_out);
  RowTargets<T> targets{};
  for (int64_t r = 0; r < kGroupRows; ++r)
    if (const int64_t column = row + r - args.first_column; column >= 0 && row + r < last)
      targets[static_cast<size_t>(r)] =
          reinterpret_cast<T*>(args.out) + column / nr * args.depth * nr + column % nr * kq;
  return targets;
}

// 32 weights of a group, (chunk, row, 8), to `k` of the panels. kQ: the kernel's kq.
template <int64_t kQ, typename T>
void scatter(const T* weights, int64_t nr, int64_t k, const RowTargets<T>& targets) {
  for (int64_t r = 0; r < kGroupRows; ++r) {
    T* to = targets[static_cast<size_t>(r)];
    if (to == nullptr) continue;
    to += k * nr;
    for (int64_t j = 0; j < kSubBlock / kChunk; ++j)
      for (int64_t i = 0; i < kChunk; i += kQ, to += kQ * nr)
        std::memcpy(to, weights + (j * kGroupRows + r) * kChunk + i, kQ * sizeof(T));
  }
}

// All of args.k for the group of `row`.
template <int64_t kQ, typename T>
void expand_group(const ExpandArgs& args, const BlockLayout& layout, int64_t row) {
  const auto* group =
      reinterpret_cast<const uint8_t*>(args.groups + row / kGroupRows * args.group_bytes);
  const RowTargets<T> targets = targets_of<T>(args, row);
  const int64_t per_sub = kSubBlock / layout.scale_width;
  Scales scales;
  std::array<float, kTile> wide;
  std::array<BFloat16, kTile> narrow;
  for (int64_t k = 0; k < args.depth; k += layout.block) {
    const uint8_t* block = group + (args.k + k) / layout.block * layout.bytes;
    read_scales(layout, block, scales);
    for (int64_t s = 0; s < layout.block / kSubBlock; ++s) {
      const int64_t at = s * per_sub * kGroupRows;
      expand_tile(layout.bits, layout.offset,
                  {.sub = block + layout.weights + s * layout.sub_bytes,
                   .scale = scales.scale.data() + at,
                   .minimum = scales.minimum.data() + at,
                   .halves = per_sub == 2,
                   .out = wide.data()});
      if constexpr (std::is_same_v<T, float>) {
        scatter<kQ>(wide.data(), args.kernel->nr, k + s * kSubBlock, targets);
      } else {
        primitives::narrow(wide.data(), kTile, narrow.data());
        scatter<kQ>(narrow.data(), args.kernel->nr, k + s * kSubBlock, targets);
      }
    }
  }
}

}  // namespace

void expand_panels(const ExpandArgs& args) {
  const BlockLayout layout = make_block_layout(args.type);
  const Kernel& kernel = *args.kernel;
  const int64_t last = std::min(args.first_column + args.n_columns, args.n_out);
  const int64_t begin = args.first_column / kGroupRows * kGroupRows;
  if (kernel.kq == 2) {
    // A panel has whole groups: nothing lies outside of it.
    SLUICE_CHECK(kernel.nr % kGroupRows == 0 && kernel.b_dtype == DType::kBF16);
    const ExpandPairsFunction expand = expand_pairs_function(args.type);
    SLUICE_CHECK(expand != nullptr);
    const std::byte* blocks = args.groups + args.k / layout.block * layout.bytes;
    for (int64_t row = begin; row < last; row += kGroupRows)
      expand(blocks + row / kGroupRows * args.group_bytes, args.depth / layout.block, kernel.nr,
             reinterpret_cast<uint16_t*>(targets_of<BFloat16>(args, row)[0]));
    return;
  }
  SLUICE_CHECK(kernel.kq == 1 || kernel.kq == 4);
  const auto expand =
      kernel.b_dtype == DType::kF32
          ? (kernel.kq == 1 ? expand_group<1, float> : expand_group<4, float>)
          : (kernel.kq == 1 ? expand_group<1, BFloat16> : expand_group<4, BFloat16>);
  for (int64_t row = begin; row < last; row += kGroupRows) expand(args, layout, row);
}

}  // namespace sluice::impl::cpu::gemm
