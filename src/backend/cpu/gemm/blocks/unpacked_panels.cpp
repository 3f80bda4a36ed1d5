#include "backend/cpu/gemm/blocks/unpacked_panels.h"

#include <algorithm>

#include "backend/cpu/gemm/scratch.h"

namespace sluice::impl::cpu::gemm {

UnpackedPanels::UnpackedPanels(const BlockTileKernel& kernel, DType type, int64_t depth,
                               int64_t bytes, int64_t most_groups)
    : kernel_(kernel),
      layout_(make_block_layout(type)),
      minima_(kernel.minima || layout_.minima),
      panel_rows_(kernel.panel_groups * kGroupRows),
      panel_scales_(panel_rows_ * (kernel.pairs ? 2 : 1)),
      weight_bytes_(depth * panel_rows_),
      scale_bytes_(depth / layout_.scale_width * panel_scales_ * int64_t{sizeof(float)}),
      capacity_(std::clamp<int64_t>(bytes / panel_bytes(), 1,
                                    std::max<int64_t>(most_groups / kernel.panel_groups, 1))) {
  thread_local Scratch scratch;
  memory_ = scratch.at_least(capacity_ * panel_bytes());
}

UnpackedGroup UnpackedPanels::group(int64_t index) const {
  std::byte* const panel = memory_ + index / kernel_.panel_groups * panel_bytes();
  const int64_t row = index % kernel_.panel_groups * kGroupRows;
  auto* const scales = reinterpret_cast<float*>(panel + weight_bytes_) + row;
  return {.weights = reinterpret_cast<int8_t*>(panel) + row * kernel_.together,
          .scales = scales,
          .minima = minima_ ? scales + scale_bytes_ / int64_t{sizeof(float)} : nullptr};
}

void UnpackedPanels::read_column(int64_t k, int64_t n_groups, float* column) const {
  const int64_t together = kernel_.together;
  const int64_t of_weight = k / together * panel_rows_ * together + k % together;
  const int64_t of_scale = k / layout_.scale_width * panel_scales_;
  const int64_t of_minimum = k / kSubBlock * panel_scales_;
  for (int64_t g = 0; g < n_groups; g += kernel_.panel_groups) {
    const UnpackedGroup panel = group(g);
    const int8_t* q = panel.weights + of_weight;
    const int64_t n = std::min(panel_rows_, (n_groups - g) * kGroupRows);
    for (int64_t r = 0; r < n; ++r, q += together) {
      const int64_t at = kernel_.pairs ? r / 2 * 4 + r % 2 : r;
      const int32_t weight =
          kernel_.unsigned_weights ? static_cast<uint8_t>(*q) + unsigned_offset(layout_) : *q;
      *column = panel.scales[of_scale + at] * static_cast<float>(weight);
      if (minima_) *column += panel.minima[of_minimum + at];
      ++column;
    }
  }
}

}  // namespace sluice::impl::cpu::gemm
