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

struct Reduce {
  const GramScan& scan;
  std::span<GramCandidates> candidates;  // (rows, queries)
  std::vector<float> maxima;

  // Rows [first, first + n_rows) of products with a group of panels.
  void run(Panels panels, int64_t first, int64_t n_rows, const float* c, int64_t c_stride) {
    const int64_t nr = scan.kernel->nr;
    maxima.resize(static_cast<size_t>(n_rows * panels.size()));
    double rounding = 0;
    for (int64_t panel = panels.begin; panel < panels.end; ++panel)
      rounding = std::max(rounding, scan.columns->rounding(panel));
    for (size_t q = 0; q < scan.queries.size(); ++q) {
      const GramQuery& query = scan.queries[q];
      const auto at = [&](int64_t i) -> GramCandidates& {
        return candidates[static_cast<size_t>(first + i) * scan.queries.size() + q];
      };
      bool any = false;
      for (int64_t i = 0; i < n_rows && !any; ++i) any = at(i).asks();
      if (!any) continue;
      panel_maxima({.c = c,
                    .c_stride = c_stride,
                    .n_rows = n_rows,
                    .n_panels = panels.size(),
                    .nr = nr,
                    .factors = scan.columns->inverses() + panels.begin * nr,
                    .mask = scan.columns->mask(query.mask) + panels.begin * nr,
                    .absolute = query.absolute,
                    .out = maxima.data()});
      for (int64_t i = 0; i < n_rows; ++i) {
        GramCandidates& mine = at(i);
        if (!mine.asks()) continue;
        const GramRow& row = (*scan.rows)[first + i];
        const double error = gram_error(scan.d_model, row.rounding, rounding);
        const float* top = maxima.data() + i * panels.size();
        for (int64_t p = 0; p < panels.size(); ++p) {
          if (top[p] == -INFINITY) continue;
          if (double{top[p]} * row.packed_inverse + error < mine.enter) continue;
          collect(scan, query, first + i, panels.begin + p, c + i * c_stride + p * nr, mine);
        }
      }
    }
  }
};

}  // namespace

int64_t GramScan::run(std::span<GramCandidates> candidates) const {
  const int64_t n_panels = columns->n_panels(), n_rows = rows->size();
  if (n_panels == 0 || n_rows == 0) return 0;
  const int64_t parts = std::min<int64_t>(threads(), n_panels);
  std::vector<std::vector<GramCandidates>> of_part(static_cast<size_t>(parts));
  parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
    thread_local std::vector<float> products;
    for (int64_t part = begin; part < end; ++part) {
      auto& mine = of_part[static_cast<size_t>(part)];
      mine.resize(candidates.size());
      for (size_t i = 0; i < mine.size(); ++i) mine[i].ask_like(candidates[i]);
      Reduce reduce{*this, mine, {}};
      const Panels panels = {n_panels * part / parts, n_panels * (part + 1) / parts};
      for (int64_t first = panels.begin; first < panels.end; first += kGroupPanels) {
        const Panels group = {first, std::min(first + kGroupPanels, panels.end)};
        const int64_t stride = group.size() * kernel->nr;
        products.resize(std::max(products.size(), static_cast<size_t>(n_rows * stride)));
        multiply_panels(*this, group, products.data(), stride,
                        [](int64_t, int64_t) { return true; });
        reduce.run(group, 0, n_rows, products.data(), stride);
      }
    }
  });
  for (const auto& part : of_part)
    for (size_t i = 0; i < part.size(); ++i) candidates[i].take_over(part[i]);
  return n_rows * columns->size();
}

int64_t GramScan::multiply(std::vector<float>& products) const {
  const int64_t n_panels = columns->n_panels(), stride = n_panels * kernel->nr;
  products.resize(std::max(products.size(), static_cast<size_t>(rows->size() * stride)));
  std::vector<int64_t> pairs(static_cast<size_t>(n_panels));
  parallel_for(n_panels, 1, [&](int64_t begin, int64_t end) {
    if (begin == end) return;
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
  Reduce{*this, candidates, {}}.run({0, n_panels}, row, 1, products.data() + row * stride, stride);
}

}  // namespace sluice::cpu
