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
constexpr int64_t kPanelParts = 4;
constexpr int64_t kMergeRows = 64;

// Below this many multiplications a parallel region costs more than it saves.
constexpr int64_t kThreadWork = int64_t{1} << 20;

int64_t panels_worth_a_thread(const GramScan& scan) {
  return 1 + kThreadWork / (scan.rows->size() * scan.kernel->nr * scan.d_model);
}

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
  // Part i of n.
  Range part(int64_t i, int64_t n) const {
    return {begin + size() * i / n, begin + size() * (i + 1) / n};
  }
};
using Panels = Range;

struct Products {
  float* data;  // (rows, panels * nr)
  int64_t stride;
};

// Multiplies rows with a group of panels. Tiles of which `wanted` says no are left out.
template <typename Wanted>
int64_t multiply_panels(const GramScan& scan, Range rows, Panels panels, Products c,
                        const Wanted& wanted) {
  const GemmKernel& kernel = *scan.kernel;
  const int64_t k_end = kernel.padded_k(scan.d_model);
  const int64_t a_bytes = element_bytes(kernel.a_dtype);
  int64_t pairs = 0;
  for (int64_t k = 0; k < k_end; k += kGramDepth)
    for (int64_t group = rows.begin; group < rows.end; group += kTileGroup * kernel.mr)
      for (int64_t panel = panels.begin; panel < panels.end; ++panel)
        for (int64_t i = group; i < std::min(rows.end, group + kTileGroup * kernel.mr);
             i += kernel.mr) {
          const int64_t height = std::min(kernel.mr, rows.end - i);
          if (!wanted(i + height - 1, panel)) continue;
          if (k == 0)
            pairs += height * std::min(kernel.nr, scan.columns->size() - panel * kernel.nr);
          kernel.tiles[height - 1](
              {.a = scan.rows->packed(i) + k * a_bytes,
               .a_stride = scan.rows->stride(),
               .b = scan.columns->panel(panel, k),
               .k = std::min(kGramDepth, k_end - k),
               .c = c.data + (i - rows.begin) * c.stride + (panel - panels.begin) * kernel.nr,
               .c_stride = c.stride,
               .accumulate = k > 0});
        }
  return pairs;
}

// Products of one row with a group of panels.
struct RowProducts {
  int64_t row;
  Panels panels;
  double rounding;  // the largest of the panels
  const float* c;   // (panels * nr)
};

// Adds the columns that matter.
void collect(const GramScan& scan, const GramQuery& query, const RowProducts& products,
             GramCandidates& candidates) {
  const GramRow& a = (*scan.rows)[products.row];
  const double error = gram_error(scan.d_model, a.rounding, products.rounding);
  const int64_t first = products.panels.begin * scan.kernel->nr;
  const int64_t end = std::min(scan.columns->size(), products.panels.end * scan.kernel->nr);
  for (int64_t column = first; column < end; ++column) {
    if (!scan.columns->counts(query.mask, column)) continue;
    const GramRow& b = (*scan.columns)[column];
    if (query.earlier && b.position >= a.position) continue;
    double value = double{products.c[column - first]} * b.packed_inverse * a.packed_inverse;
    if (query.absolute) value = std::abs(value);
    if (value + error < candidates.enter) continue;
    candidates.add({scan.columns, column, value - error, value + error});
  }
}

// Most rows have nothing nearer in a group than what they have seen: one maximum tells.
void reduce(const GramScan& scan, const GramQuery& query, const RowProducts& products,
            GramCandidates& candidates) {
  const int64_t nr = scan.kernel->nr;
  const auto [row, panels, rounding, c] = products;
  const auto products_of = [&](int64_t panel) { return c + (panel - panels.begin) * nr; };
  const auto maximum = [&](int64_t panel, int64_t n_panels) {
    return double{masked_maximum({.c = products_of(panel),
                                  .factors = scan.columns->inverses() + panel * nr,
                                  .mask = scan.columns->mask(query.mask) + panel * nr,
                                  .n = n_panels * nr,
                                  .absolute = query.absolute})};
  };
  const double top = maximum(panels.begin, panels.size());
  if (top == -INFINITY) return;
  const GramRow& a = (*scan.rows)[row];
  const double error = gram_error(scan.d_model, a.rounding, rounding);
  if (top * a.packed_inverse + error < candidates.enter) return;
  if (!query.earlier) candidates.raise(top * a.packed_inverse - error);
  for (int64_t panel = panels.begin; panel < panels.end && candidates.asks(); ++panel) {
    const double panel_top = maximum(panel, 1);
    if (panel_top == -INFINITY || panel_top * a.packed_inverse + error < candidates.enter) continue;
    const Panels one = {panel, panel + 1};
    collect(scan, query, {row, one, scan.columns->rounding(panel), products_of(panel)}, candidates);
  }
}

// The same for all that a row asks.
void reduce_row(const GramScan& scan, const RowProducts& products,
                std::span<GramCandidates> candidates) {
  const size_t n_queries = scan.queries.size();
  const auto mine = candidates.subspan(static_cast<size_t>(products.row) * n_queries, n_queries);
  for (size_t q = 0; q < n_queries; ++q)
    if (mine[q].asks()) reduce(scan, scan.queries[q], products, mine[q]);
}

double largest_rounding(const GramColumns& columns, Panels panels) {
  double largest = 0;
  for (int64_t panel = panels.begin; panel < panels.end; ++panel)
    largest = std::max(largest, columns.rounding(panel));
  return largest;
}

// Products of some rows with some panels, reduced group by group.
void scan_part(const GramScan& scan, Range rows, Panels panels, std::vector<float>& products,
               std::span<GramCandidates> candidates) {
  for (int64_t first = panels.begin; first < panels.end; first += kGroupPanels) {
    const Panels group = {first, std::min(first + kGroupPanels, panels.end)};
    const int64_t stride = group.size() * scan.kernel->nr;
    products.resize(std::max(products.size(), static_cast<size_t>(rows.size() * stride)));
    multiply_panels(scan, rows, group, {products.data(), stride},
                    [](int64_t, int64_t) { return true; });
    const double rounding = largest_rounding(*scan.columns, group);
    for (int64_t row = rows.begin; row < rows.end; ++row)
      reduce_row(scan, {row, group, rounding, products.data() + (row - rows.begin) * stride},
                 candidates);
  }
}

}  // namespace

// Panels are cut first: a part of them meets many rows while it is in cache. But every part needs
// candidates of its own, so with few panels or many threads the rows are cut too.
int64_t GramScan::run(std::span<GramCandidates> candidates, Parts& parts) const {
  const int64_t n_panels = columns->n_panels(), n_rows = rows->size();
  if (n_panels == 0 || n_rows == 0) return 0;
  const int64_t work = n_rows * n_panels * kernel->nr * d_model;
  const int64_t n_workers = std::clamp<int64_t>(work / kThreadWork, 1, threads());
  const int64_t panel_parts = std::min({n_workers, kPanelParts, (n_panels + 1) / 2});
  const int64_t row_parts = std::clamp<int64_t>(n_rows / (kTileGroup * kernel->mr), 1,
                                                (n_workers + panel_parts - 1) / panel_parts);
  parts.resize(std::max(parts.size(), static_cast<size_t>(panel_parts - 1)));
  for (auto& own : parts) own.resize(std::max(own.size(), candidates.size()));
  const auto of_rows = [&](Range range, const auto& body) {  // body(candidate) of these rows
    const auto n_queries = static_cast<int64_t>(queries.size());
    for (int64_t i = range.begin * n_queries; i < range.end * n_queries; ++i)
      body(static_cast<size_t>(i));
  };
  parallel_for(row_parts * panel_parts, 1, [&](int64_t begin, int64_t end) {
    thread_local std::vector<float> products;
    for (int64_t i = begin; i < end; ++i) {
      const Range mine = Range{0, n_rows}.part(i / panel_parts, row_parts);
      const int64_t part = i % panel_parts;
      std::span<GramCandidates> found = candidates;
      if (part > 0) {
        found = parts[static_cast<size_t>(part - 1)];
        of_rows(mine, [&](size_t c) { found[c].ask_like(candidates[c]); });
      }
      scan_part(*this, mine, Panels{0, n_panels}.part(part, panel_parts), products, found);
    }
  });
  parallel_for(n_rows, kMergeRows, [&](int64_t begin, int64_t end) {
    for (int64_t part = 1; part < panel_parts; ++part)
      of_rows({begin, end},
              [&](size_t c) { candidates[c].take_over(parts[static_cast<size_t>(part - 1)][c]); });
  });
  return n_rows * columns->size();
}

int64_t GramScan::multiply(std::vector<float>& products) const {
  const int64_t n_panels = columns->n_panels(), stride = n_panels * kernel->nr;
  products.resize(std::max(products.size(), static_cast<size_t>(rows->size() * stride)));
  std::vector<int64_t> pairs(static_cast<size_t>(n_panels));
  if (n_panels == 0) return 0;
  parallel_for(n_panels, panels_worth_a_thread(*this), [&](int64_t begin, int64_t end) {
    pairs[static_cast<size_t>(begin)] = multiply_panels(
        *this, {0, rows->size()}, {begin, end}, {products.data() + begin * kernel->nr, stride},
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
  const Panels all = {0, n_panels};
  reduce_row(*this, {row, all, largest_rounding(*columns, all), products.data() + row * stride},
             candidates);
}

}  // namespace sluice::cpu
