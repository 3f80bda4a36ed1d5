// Blocking as in linear_packed.cpp, from the inside out: a register tile of mr x nr; kGramDepth of
// k, so that a slice of a panel stays in the first cache; a group of tiles that meets it there; all
// rows of the block; kGroupPanels panels, whose products stay in the second cache until reduced.

#include "backend/cpu/gram_scan.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/gram_simd.h"
#include "core/threads.h"

namespace sluice::cpu {
namespace {

constexpr int64_t kGroupPanels = 16;
constexpr int64_t kTileGroup = 2;

// Below this many multiplications a parallel region costs more than it saves.
constexpr int64_t kThreadWork = int64_t{1} << 20;

int64_t panels_worth_a_thread(const GramScan& scan) {
  return 1 + kThreadWork / (scan.rows->size() * scan.kernel->nr * scan.d_model);
}

struct Panels {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// Products (rows, panels * nr) of a group of panels. Tiles of which `wanted` says no are left out.
template <typename Wanted>
int64_t multiply_panels(const GramScan& scan, Panels panels, float* c, int64_t c_stride,
                        const Wanted& wanted) {
  const GemmKernel& kernel = *scan.kernel;
  const int64_t n_rows = scan.rows->size(), k_end = kernel.padded_k(scan.d_model);
  const int64_t a_bytes = element_bytes(kernel.a_dtype);
  int64_t pairs = 0;
  for (int64_t k = 0; k < k_end; k += kGramDepth)
    for (int64_t group = 0; group < n_rows; group += kTileGroup * kernel.mr)
      for (int64_t panel = panels.begin; panel < panels.end; ++panel)
        for (int64_t i = group; i < std::min(n_rows, group + kTileGroup * kernel.mr);
             i += kernel.mr) {
          const int64_t height = std::min(kernel.mr, n_rows - i);
          if (!wanted(i + height - 1, panel)) continue;
          if (k == 0)
            pairs += height * std::min(kernel.nr, scan.columns->size() - panel * kernel.nr);
          kernel.tiles[height - 1]({.a = scan.rows->packed(i) + k * a_bytes,
                                    .a_stride = scan.rows->stride(),
                                    .b = scan.columns->panel(panel, k),
                                    .k = std::min(kGramDepth, k_end - k),
                                    .c = c + i * c_stride + (panel - panels.begin) * kernel.nr,
                                    .c_stride = c_stride,
                                    .accumulate = k > 0});
        }
  return pairs;
}

// What one panel has to say to one row; c are its nr products.
void collect(const GramScan& scan, const GramQuery& query, int64_t row, int64_t panel,
             const float* c, GramCandidates& candidates) {
  const GramRow& a = (*scan.rows)[row];
  const double error = gram_error(scan.d_model, a.rounding, scan.columns->rounding(panel));
  const int64_t nr = scan.kernel->nr;
  const int64_t end = std::min(scan.columns->size(), (panel + 1) * nr);
  for (int64_t column = panel * nr; column < end; ++column) {
    if (!scan.columns->counts(query.mask, column)) continue;
    const GramRow& b = (*scan.columns)[column];
    if (query.earlier && b.position >= a.position) continue;
    double value = double{c[column - panel * nr]} * b.packed_inverse * a.packed_inverse;
    if (query.absolute) value = std::abs(value);
    if (value + error < candidates.enter) continue;
    candidates.add({scan.columns, column, value - error, value + error});
  }
}

// Products of rows with a group of panels.
struct ProductBlock {
  Panels panels;
  int64_t first_row, n_rows;
  const float* c;  // (n_rows, panels * nr)
  int64_t c_stride;
};

class Reduction {
 public:
  Reduction(const GramScan& scan, std::span<GramCandidates> candidates)
      : scan_(scan), candidates_(candidates) {}

  void add(const ProductBlock& block) {
    double rounding = 0;
    for (int64_t panel = block.panels.begin; panel < block.panels.end; ++panel)
      rounding = std::max(rounding, scan_.columns->rounding(panel));
    for (size_t q = 0; q < scan_.queries.size(); ++q) add(block, q, rounding);
  }

 private:
  GramCandidates& at(int64_t row, size_t query) {
    return candidates_[static_cast<size_t>(row) * scan_.queries.size() + query];
  }

  // Most rows have nothing nearer in a group than what they have seen: one maximum tells.
  void add(const ProductBlock& block, size_t q, double rounding) {
    bool any_asks = false;
    for (int64_t i = 0; i < block.n_rows && !any_asks; ++i)
      any_asks = at(block.first_row + i, q).asks();
    if (!any_asks) return;
    const GramQuery& query = scan_.queries[q];
    const int64_t nr = scan_.kernel->nr, n_panels = block.panels.size();
    row_maxima_.resize(static_cast<size_t>(block.n_rows));
    panel_maxima_.resize(static_cast<size_t>(n_panels));
    PanelMaximaArgs args = {.c = block.c,
                            .c_stride = block.c_stride,
                            .n_rows = block.n_rows,
                            .n_panels = 1,
                            .nr = n_panels * nr,
                            .factors = scan_.columns->inverses() + block.panels.begin * nr,
                            .mask = scan_.columns->mask(query.mask) + block.panels.begin * nr,
                            .absolute = query.absolute,
                            .out = row_maxima_.data()};
    panel_maxima(args);
    args.n_rows = 1;
    args.n_panels = n_panels;
    args.nr = nr;
    args.out = panel_maxima_.data();
    for (int64_t i = 0; i < block.n_rows; ++i) {
      const int64_t row = block.first_row + i;
      GramCandidates& mine = at(row, q);
      if (!mine.asks()) continue;
      const float top = row_maxima_[static_cast<size_t>(i)];
      if (top == -INFINITY) continue;
      const double inverse = (*scan_.rows)[row].packed_inverse;
      const double error = gram_error(scan_.d_model, (*scan_.rows)[row].rounding, rounding);
      if (double{top} * inverse + error < mine.enter) continue;
      if (!query.earlier) mine.raise(double{top} * inverse - error);
      args.c = block.c + i * block.c_stride;
      panel_maxima(args);
      for (int64_t p = 0; p < n_panels && mine.asks(); ++p) {
        const float panel_top = panel_maxima_[static_cast<size_t>(p)];
        if (panel_top == -INFINITY || double{panel_top} * inverse + error < mine.enter) continue;
        collect(scan_, query, row, block.panels.begin + p, args.c + p * nr, mine);
      }
    }
  }

  const GramScan& scan_;
  std::span<GramCandidates> candidates_;  // (rows, queries)
  std::vector<float> row_maxima_, panel_maxima_;
};

}  // namespace

int64_t GramScan::run(std::span<GramCandidates> candidates, Parts& parts) const {
  const int64_t n_panels = columns->n_panels(), n_rows = rows->size();
  if (n_panels == 0 || n_rows == 0) return 0;
  const int64_t n_parts =
      std::clamp<int64_t>(n_panels / panels_worth_a_thread(*this), 1, threads());
  parts.resize(std::max(parts.size(), static_cast<size_t>(n_parts - 1)));
  for (int64_t part = 1; part < n_parts; ++part) {
    auto& own = parts[static_cast<size_t>(part - 1)];
    own.resize(std::max(own.size(), candidates.size()));
    for (size_t i = 0; i < candidates.size(); ++i) own[i].ask_like(candidates[i]);
  }
  parallel_for(n_parts, 1, [&](int64_t begin, int64_t end) {
    thread_local std::vector<float> products;
    for (int64_t part = begin; part < end; ++part) {
      Reduction reduction(*this, part == 0 ? candidates : parts[static_cast<size_t>(part - 1)]);
      const Panels panels = {n_panels * part / n_parts, n_panels * (part + 1) / n_parts};
      for (int64_t first = panels.begin; first < panels.end; first += kGroupPanels) {
        const Panels group = {first, std::min(first + kGroupPanels, panels.end)};
        const int64_t stride = group.size() * kernel->nr;
        products.resize(std::max(products.size(), static_cast<size_t>(n_rows * stride)));
        multiply_panels(*this, group, products.data(), stride,
                        [](int64_t, int64_t) { return true; });
        reduction.add({group, 0, n_rows, products.data(), stride});
      }
    }
  });
  for (int64_t part = 1; part < n_parts; ++part)
    for (size_t i = 0; i < candidates.size(); ++i)
      candidates[i].take_over(parts[static_cast<size_t>(part - 1)][i]);
  return n_rows * columns->size();
}

int64_t GramScan::multiply(std::vector<float>& products) const {
  const int64_t n_panels = columns->n_panels(), stride = n_panels * kernel->nr;
  products.resize(std::max(products.size(), static_cast<size_t>(rows->size() * stride)));
  std::vector<int64_t> pairs(static_cast<size_t>(n_panels));
  if (n_panels == 0) return 0;
  parallel_for(n_panels, panels_worth_a_thread(*this), [&](int64_t begin, int64_t end) {
    pairs[static_cast<size_t>(begin)] = multiply_panels(
        *this, {begin, end}, products.data() + begin * kernel->nr, stride,
        [&](int64_t last_row, int64_t panel) {
          return (*rows)[last_row].position > (*columns)[panel * kernel->nr].position;
        });
  });
  int64_t sum = 0;
  for (const int64_t n : pairs) sum += n;
  return sum;
}

void GramScan::collect_row(const std::vector<float>& products, int64_t row,
                           std::span<GramCandidates> candidates) const {
  const int64_t n_panels = columns->n_panels(), stride = n_panels * kernel->nr;
  if (n_panels == 0) return;
  Reduction(*this, candidates).add({{0, n_panels}, row, 1, products.data() + row * stride, stride});
}

}  // namespace sluice::cpu
