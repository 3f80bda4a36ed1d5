// x W^T with W packed once into panels (gemm/gemm.h): many rows by gemm/panel_linear.h, one row by
// a kernel of its own.

#include <algorithm>
#include <vector>

#include "backend/cpu/gemm/panel_linear.h"
#include "core/threads.h"

namespace sluice::impl::cpu::gemm {
namespace {

// 128 rows x 512 k of f32 are 256 KiB, a quarter of a 1 MiB second-level cache.
constexpr int64_t kMaxRowBlock = 128;

class PackedLinear final : public PanelLinear {
 public:
  PackedLinear(MatrixSource source, const Kernel& kernel)
      : PanelLinear(source,
                    kernel.panels(source.n_out) * kernel.panel_elements(source.n_in) *
                        element_bytes(kernel.b_dtype),
                    kernel, std::move(source.bias)),
        panels_(host_buffer(kernel.b_dtype,
                            {kernel.panels(source.n_out), kernel.panel_elements(source.n_in)})) {
    const int64_t nr = kernel.nr;
    parallel_for(kernel.panels(source.n_out), 1, [&](int64_t begin, int64_t end) {
      std::vector<float> rows(static_cast<size_t>(nr * source.n_in));
      for (int64_t panel = begin; panel < end; ++panel) {
        const int64_t n = std::min(nr, source.n_out - panel * nr);
        source.read_rows(panel * nr, panel * nr + n, rows.data());
        pack_panel_rows(kernel, rows.data(), source.n_in, n, source.n_in, panel_at(panel, 0));
      }
    });
  }

  const char* provider() const override { return kernel().name; }

  void run(const LinearArgs& args) const override {
    const int64_t n_rows = args.x.rows(), mr = kernel().mr;
    if (n_rows == 1) {
      parallel_for(kernel().panels(n_out()), 1, [&](int64_t begin, int64_t end) {
        run_row(args, {begin, end});
      });
      return;
    }
    // Few rows: every thread reads its own share of the weights. Many: its own share of the rows,
    // and columns too when there are more threads than row blocks.
    const int64_t tiles = (n_rows + mr - 1) / mr;
    multiply(args,
             {.row_block = kMaxRowBlock,
              .row_parts = n_rows <= 2 * mr ? 1 : std::min<int64_t>(threads(), (tiles + 3) / 4)});
  }

 private:
  std::byte* panel_at(int64_t panel, int64_t k) const {
    return panels_.view().bytes() + (panel * kernel().panel_elements(n_in()) + k * kernel().nr) *
                                        element_bytes(kernel().b_dtype);
  }

  PanelSlices slices(Range panels, int64_t k, int64_t) const override {
    return {panel_at(panels.begin, k),
            kernel().panel_elements(n_in()) * element_bytes(kernel().b_dtype)};
  }

  // One row: the panels are cut into kRowPanels streams that are read side by side.
  void run_row(const LinearArgs& args, Range panels) const {
    constexpr int64_t kStreams = Kernel::kRowPanels;
    const int64_t nr = kernel().nr;
    const int64_t k_end = kernel().padded_k(n_in()), depth = kernel().panel_elements(n_in());
    const int64_t n_panels = panels.end - panels.begin;
    if (n_panels == 0) return;
    thread_local std::vector<std::byte> x;
    thread_local std::vector<float> sums;
    x.resize(std::max(x.size(), static_cast<size_t>(k_end * element_bytes(kernel().a_dtype))));
    sums.resize(std::max(sums.size(), static_cast<size_t>(n_panels * nr)));
    convert_row(args.x, 0, {.k = 0, .n = n_in(), .end = k_end}, x.data());
    const auto run = [&](int64_t first, int64_t n_streams, int64_t apart) {
      kernel().rows[n_streams - 1]({x.data(), panel_at(panels.begin + first, 0), apart * depth,
                                    k_end, sums.data() + first * nr, apart * nr});
    };
    const int64_t length = n_panels / kStreams;
    for (int64_t i = 0; i < length; ++i) run(i, kStreams, length);
    if (const int64_t rest = n_panels % kStreams; rest > 0) run(kStreams * length, rest, 1);
    const int64_t column = panels.begin * nr;
    finish_row({.linear = &args,
                .bias = bias(),
                .row = 0,
                .column = column,
                .n = std::min(panels.end * nr, n_out()) - column,
                .sums = sums.data()});
  }

  Buffer panels_;  // (panels, padded k, nr), see gemm/gemm.h
};

}  // namespace

std::unique_ptr<Linear> make_packed_linear(MatrixSource source, DType dtype) {
  return std::make_unique<PackedLinear>(std::move(source), kernel_for(dtype));
}

}  // namespace sluice::impl::cpu::gemm
