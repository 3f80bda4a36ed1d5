// x W^T with W packed once into panels (gemm/gemm.h). Blocking, from the inside out: a register
// tile of mr x nr; kDepth of k, so that a slice of a panel stays in the first cache while a block
// of rows passes over it; kMaxRowBlock rows, converted once per block; kBlockBytes of panels at
// that depth, which stay in the second cache while all rows of the block pass, as do their f32 sums
// until the epilogue.

#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/cpu/gemm/gemm.h"
#include "backend/cpu/gemm/linear.h"
#include "backend/cpu/primitives/rows.h"
#include "core/threads.h"

namespace sluice::impl::cpu::gemm {
namespace {

// 128 rows x 512 k of f32 are 256 KiB, a quarter of a 1 MiB second-level cache.
constexpr int64_t kMaxRowBlock = 128;
constexpr int64_t kDepth = 512;
constexpr int64_t kTileGroup = 2;
constexpr int64_t kBlockBytes = int64_t{192} << 10;
// Rows are this many bytes further apart than their length, so that rows of a power-of-two length
// do not share cache sets.
constexpr int64_t kRowPadBytes = 64;

struct Range {
  int64_t begin, end;
};

class PackedLinear final : public Linear {
 public:
  PackedLinear(MatrixSource source, const Kernel& kernel)
      : Linear(source.n_out, source.n_in,
               kernel.panels(source.n_out) * kernel.panel_elements(source.n_in) *
                   element_bytes(kernel.b_dtype)),
        kernel_(kernel),
        panels_(host_buffer(kernel.b_dtype,
                            {kernel.panels(source.n_out), kernel.panel_elements(source.n_in)})),
        bias_(std::move(source.bias)) {
    const int64_t nr = kernel_.nr;
    parallel_for(kernel_.panels(source.n_out), 1, [&](int64_t begin, int64_t end) {
      std::vector<float> rows(static_cast<size_t>(nr * source.n_in));
      for (int64_t panel = begin; panel < end; ++panel) {
        const int64_t n = std::min(nr, source.n_out - panel * nr);
        source.read_rows(panel * nr, panel * nr + n, rows.data());
        pack_panel_rows(kernel_, rows.data(), source.n_in, n, source.n_in, panel_at(panel, 0));
      }
    });
  }

  const char* provider() const override { return kernel_.name; }

  void run(const LinearArgs& args) const override {
    const int64_t n_rows = args.x.rows();
    if (n_rows == 1) {
      parallel_for(kernel_.panels(n_out()), 1, [&](int64_t begin, int64_t end) {
        run_row(args, {begin, end});
      });
      return;
    }
    // Few rows: every thread reads its own share of the weights. Many: its own share of the rows,
    // and columns too when there are more threads than row blocks.
    const int64_t tiles = (n_rows + kernel_.mr - 1) / kernel_.mr;
    const int64_t row_parts =
        n_rows <= 2 * kernel_.mr ? 1 : std::min<int64_t>(threads(), (tiles + 3) / 4);
    const int64_t column_parts = (threads() + row_parts - 1) / row_parts;
    parallel_for(row_parts * column_parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        const int64_t r = part / column_parts, c = part % column_parts;
        const int64_t panels = kernel_.panels(n_out());
        run_part(args,
                 {std::min(n_rows, tiles * r / row_parts * kernel_.mr),
                  std::min(n_rows, tiles * (r + 1) / row_parts * kernel_.mr)},
                 {panels * c / column_parts, panels * (c + 1) / column_parts});
      }
    });
  }

 private:
  std::byte* panel_at(int64_t panel, int64_t k) const {
    return panels_.view().bytes() + (panel * kernel_.panel_elements(n_in()) + k * kernel_.nr) *
                                        element_bytes(kernel_.b_dtype);
  }

  void run_part(const LinearArgs& args, Range rows, Range panels) const {
    const int64_t k_end = kernel_.padded_k(n_in());
    const int64_t a_bytes = element_bytes(kernel_.a_dtype);
    const int64_t a_stride = k_end + kRowPadBytes / a_bytes;
    const int64_t panel_bytes = kDepth * kernel_.nr * element_bytes(kernel_.b_dtype);
    const int64_t panels_per_block = std::max<int64_t>(1, kBlockBytes / panel_bytes);
    const int64_t c_stride = panels_per_block * kernel_.nr;
    // Whole tiles, so that a row meets the same tile whatever the split over threads.
    const int64_t row_block = kMaxRowBlock / kernel_.mr * kernel_.mr;
    const int64_t scratch_rows = std::min(row_block, rows.end - rows.begin);
    thread_local std::vector<std::byte> a_scratch;
    thread_local std::vector<float> c_scratch;
    a_scratch.resize(
        std::max(a_scratch.size(), static_cast<size_t>(scratch_rows * a_stride * a_bytes)));
    c_scratch.resize(std::max(c_scratch.size(), static_cast<size_t>(scratch_rows * c_stride)));
    for (int64_t row = rows.begin; row < rows.end; row += row_block) {
      const int64_t n_rows = std::min(row_block, rows.end - row);
      for (int64_t i = 0; i < n_rows; ++i)
        convert_row(args.x, row + i, k_end, a_scratch.data() + i * a_stride * a_bytes);
      for (int64_t first = panels.begin; first < panels.end; first += panels_per_block) {
        const Range block = {first, std::min(first + panels_per_block, panels.end)};
        for (int64_t k = 0; k < k_end; k += kDepth)
          multiply_block({a_scratch.data() + k * a_bytes, a_stride, nullptr,
                          std::min(kDepth, k_end - k), c_scratch.data(), c_stride, k > 0},
                         n_rows, block, k);
        for (int64_t i = 0; i < n_rows; ++i)
          finish_row({.linear = &args,
                      .bias = bias_.empty() ? nullptr : bias_.data(),
                      .row = row + i,
                      .column = first * kernel_.nr,
                      .n = std::min(block.end * kernel_.nr, n_out()) - first * kernel_.nr,
                      .sums = c_scratch.data() + i * c_stride});
      }
    }
  }

  // One row: the panels are cut into kRowPanels streams that are read side by side.
  void run_row(const LinearArgs& args, Range panels) const {
    constexpr int64_t kStreams = Kernel::kRowPanels;
    const int64_t k_end = kernel_.padded_k(n_in()), depth = kernel_.panel_elements(n_in());
    const int64_t n_panels = panels.end - panels.begin;
    if (n_panels == 0) return;
    thread_local std::vector<std::byte> x;
    thread_local std::vector<float> sums;
    x.resize(std::max(x.size(), static_cast<size_t>(k_end * element_bytes(kernel_.a_dtype))));
    sums.resize(std::max(sums.size(), static_cast<size_t>(n_panels * kernel_.nr)));
    convert_row(args.x, 0, k_end, x.data());
    const auto run = [&](int64_t first, int64_t n_streams, int64_t apart) {
      kernel_.rows[n_streams - 1]({x.data(), panel_at(panels.begin + first, 0), apart * depth,
                                   k_end, sums.data() + first * kernel_.nr, apart * kernel_.nr});
    };
    const int64_t length = n_panels / kStreams;
    for (int64_t i = 0; i < length; ++i) run(i, kStreams, length);
    if (const int64_t rest = n_panels % kStreams; rest > 0) run(kStreams * length, rest, 1);
    const int64_t column = panels.begin * kernel_.nr;
    finish_row({.linear = &args,
                .bias = bias_.empty() ? nullptr : bias_.data(),
                .row = 0,
                .column = column,
                .n = std::min(panels.end * kernel_.nr, n_out()) - column,
                .sums = sums.data()});
  }

  void multiply_block(const TileArgs& block, int64_t n_rows, Range panels, int64_t k) const {
    const int64_t a_bytes = element_bytes(kernel_.a_dtype);
    const int64_t group = kTileGroup * kernel_.mr;
    for (int64_t first = 0; first < n_rows; first += group) {
      const int64_t last = std::min(n_rows, first + group);
      for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
        TileArgs tile = block;
        tile.b = panel_at(panel, k);
        for (int64_t i = first; i < last; i += kernel_.mr) {
          tile.a = static_cast<const std::byte*>(block.a) + i * block.a_stride * a_bytes;
          tile.c = block.c + i * block.c_stride + (panel - panels.begin) * kernel_.nr;
          kernel_.tiles[std::min(kernel_.mr, n_rows - i) - 1](tile);
        }
      }
    }
  }

  // One row of x in the kernel's type, zero-padded to k_end.
  void convert_row(const ConstTensor& x, int64_t row, int64_t k_end, std::byte* to) const {
    const int64_t n = n_in();
    if (kernel_.a_dtype == DType::kF32) {
      auto* out = reinterpret_cast<float*>(to);
      if (x.dtype() == DType::kF32)
        std::memcpy(out, x.row<float>(row), static_cast<size_t>(n) * sizeof(float));
      else
        primitives::widen(x.row<BFloat16>(row), n, out);
      std::fill(out + n, out + k_end, 0.0f);
    } else {
      auto* out = reinterpret_cast<BFloat16*>(to);
      if (x.dtype() == DType::kF32)
        primitives::narrow(x.row<float>(row), n, out);
      else
        std::memcpy(out, x.row<BFloat16>(row), static_cast<size_t>(n) * sizeof(BFloat16));
      std::fill(out + n, out + k_end, BFloat16{0});
    }
  }

  const Kernel& kernel_;
  Buffer panels_;  // (panels, padded k, nr), see gemm/gemm.h
  std::vector<float> bias_;
};

}  // namespace

std::unique_ptr<Linear> make_packed_linear(MatrixSource source, DType dtype) {
  return std::make_unique<PackedLinear>(std::move(source), kernel_for(dtype));
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
