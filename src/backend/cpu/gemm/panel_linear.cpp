#include "backend/cpu/gemm/panel_linear.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/gemm/scratch.h"
#include "backend/cpu/primitives/rows.h"
#include "core/threads.h"

namespace sluice::impl::cpu::gemm {
namespace {

constexpr int64_t kBlockBytes = int64_t{192} << 10;
// Rows are this many bytes further apart than their length, so that rows of a power-of-two length
// do not share cache sets.
constexpr int64_t kRowPadBytes = 64;

// Where k is cut: into pieces of the kernel's depth. A rest of at most a quarter of it belongs to
// the piece before: reading and writing all sums once more would take longer than its products.
class Pieces {
 public:
  Pieces(const Kernel& kernel, int64_t k_end)
      : depth_(kernel.depth),
        k_end_(k_end),
        n_(std::max<int64_t>(1, (k_end + depth_ - depth_ / 4 - 1) / depth_)) {}

  int64_t size() const { return n_; }
  int64_t begin(int64_t i) const { return i * depth_; }
  int64_t depth(int64_t i) const { return i + 1 < n_ ? depth_ : k_end_ - begin(i); }
  int64_t most_depth() const { return std::max(depth(0), depth(n_ - 1)); }

 private:
  int64_t depth_, k_end_, n_;
};

void multiply_block(const Kernel& kernel, const TileArgs& block, int64_t n_rows, int64_t n_panels,
                    const PanelSlices& slices) {
  const int64_t a_bytes = element_bytes(kernel.a_dtype);
  const int64_t group = kernel.row_tiles * kernel.mr;
  for (int64_t first = 0; first < n_rows; first += group) {
    const int64_t last = std::min(n_rows, first + group);
    for (int64_t panel = 0; panel < n_panels; ++panel) {
      TileArgs tile = block;
      tile.b = slices.first + panel * slices.stride;
      for (int64_t i = first; i < last; i += kernel.mr) {
        tile.a = static_cast<const std::byte*>(block.a) + i * block.a_stride * a_bytes;
        tile.c = block.c + i * block.c_stride + panel * kernel.nr;
        kernel.tiles[std::min(kernel.mr, n_rows - i) - 1](tile);
      }
    }
  }
}

}  // namespace

void PanelLinear::multiply(const LinearArgs& args, const Split& split) const {
  const int64_t n_rows = args.x.rows();
  const int64_t tiles = (n_rows + kernel_.mr - 1) / kernel_.mr;
  const int64_t row_parts = split.row_parts;
  const int64_t column_parts = (threads() + row_parts - 1) / row_parts;
  parallel_for(row_parts * column_parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t r = part / column_parts, c = part % column_parts;
      const int64_t panels = kernel_.panels(n_out());
      multiply_part(args, split.row_block,
                    {std::min(n_rows, tiles * r / row_parts * kernel_.mr),
                     std::min(n_rows, tiles * (r + 1) / row_parts * kernel_.mr)},
                    {panels * c / column_parts, panels * (c + 1) / column_parts});
    }
  });
}

void PanelLinear::multiply_part(const LinearArgs& args, int64_t row_block, Range rows,
                                Range panels) const {
  const Pieces pieces(kernel_, kernel_.padded_k(n_in()));
  const int64_t a_bytes = element_bytes(kernel_.a_dtype);
  const int64_t a_stride = pieces.most_depth() + kRowPadBytes / a_bytes;
  const int64_t panel_bytes = kernel_.depth * kernel_.nr * element_bytes(kernel_.b_dtype);
  const int64_t panels_per_block = std::max<int64_t>(1, kBlockBytes / panel_bytes);
  const int64_t c_stride = panels_per_block * kernel_.nr;
  // Whole tiles, so that a row meets the same tile whatever the split over threads.
  row_block = row_block / kernel_.mr * kernel_.mr;
  const int64_t scratch_rows = std::min(row_block, rows.end - rows.begin);
  // Rows of x by pieces: (pieces, rows, a_stride). So a tile's rows lie in few pages.
  const int64_t piece_bytes = scratch_rows * a_stride * a_bytes;
  thread_local Scratch a_scratch, c_scratch;
  std::byte* const a = a_scratch.at_least(pieces.size() * piece_bytes);
  auto* const c = reinterpret_cast<float*>(
      c_scratch.at_least(scratch_rows * c_stride * int64_t{sizeof(float)}));
  const UsedKernel used(kernel_);
  for (int64_t row = rows.begin; row < rows.end; row += row_block) {
    const int64_t n_rows = std::min(row_block, rows.end - row);
    for (int64_t p = 0; p < pieces.size(); ++p)
      for (int64_t i = 0; i < n_rows; ++i)
        convert_row(args.x, row + i,
                    {.k = pieces.begin(p),
                     .n = std::min(pieces.depth(p), n_in() - pieces.begin(p)),
                     .end = pieces.depth(p)},
                    a + p * piece_bytes + i * a_stride * a_bytes);
    for (int64_t first = panels.begin; first < panels.end; first += panels_per_block) {
      const Range block = {first, std::min(first + panels_per_block, panels.end)};
      for (int64_t p = 0; p < pieces.size(); ++p) {
        const int64_t k = pieces.begin(p), depth = pieces.depth(p);
        multiply_block(kernel_, {a + p * piece_bytes, a_stride, nullptr, depth, c, c_stride, k > 0},
                       n_rows, block.end - block.begin, slices(block, k, depth));
      }
      for (int64_t i = 0; i < n_rows; ++i)
        finish_row({.linear = &args,
                    .bias = bias(),
                    .row = row + i,
                    .column = first * kernel_.nr,
                    .n = std::min(block.end * kernel_.nr, n_out()) - first * kernel_.nr,
                    .sums = c + i * c_stride});
    }
  }
}

void PanelLinear::convert_row(const ConstTensor& x, int64_t row, const Columns& columns,
                              std::byte* to) const {
  const int64_t n = columns.n;
  if (kernel_.a_dtype == DType::kF32) {
    auto* out = reinterpret_cast<float*>(to);
    if (x.dtype() == DType::kF32)
      std::memcpy(out, x.row<float>(row) + columns.k, static_cast<size_t>(n) * sizeof(float));
    else
      primitives::widen(x.row<BFloat16>(row) + columns.k, n, out);
    std::fill(out + n, out + columns.end, 0.0f);
  } else {
    auto* out = reinterpret_cast<BFloat16*>(to);
    if (x.dtype() == DType::kF32)
      primitives::narrow(x.row<float>(row) + columns.k, n, out);
    else
      std::memcpy(out, x.row<BFloat16>(row) + columns.k, static_cast<size_t>(n) * sizeof(BFloat16));
    std::fill(out + n, out + columns.end, BFloat16{0});
  }
}

void finish_row(const EpilogueArgs& args) {
  const LinearArgs& linear = *args.linear;
  const float* bias = args.bias == nullptr ? nullptr : args.bias + args.column;
  if (bias != nullptr || linear.activation != Activation::kNone)
    primitives::bias_activate(bias, linear.activation, args.n, args.sums);
  if (linear.out.dtype() == DType::kBF16) {
    primitives::narrow(args.sums, args.n, linear.out.row<BFloat16>(args.row) + args.column);
    return;
  }
  float* out = linear.out.row<float>(args.row) + args.column;
  if (linear.accumulate)
    primitives::add(args.sums, args.n, out);
  else
    std::memcpy(out, args.sums, static_cast<size_t>(args.n) * sizeof(float));
}

}  // namespace sluice::impl::cpu::gemm
