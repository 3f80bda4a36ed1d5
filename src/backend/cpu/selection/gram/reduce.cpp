#include "backend/cpu/selection/gram/reduce.h"

#include <cmath>

namespace sluice::impl::cpu::selection {
namespace {

// Most rows have nothing nearer in a group than what they have seen: one maximum tells.
void reduce(const Scan& scan, const Query& query, const RowProducts& products,
            Candidates& candidates) {
  const int64_t nr = scan.kernel->nr;
  const auto [row, panels, rounding, c] = products;
  const double top = masked_maximum(in_query(scan, query, panels, c));
  if (top == -INFINITY) return;
  const Row& a = (*scan.rows)[row];
  const double error = gram_error(scan.d_model, a.rounding, rounding);
  if (top * a.packed_inverse + error < candidates.enter) return;
  if (!query.earlier) candidates.raise(top * a.packed_inverse - error);
  for (int64_t panel = panels.begin; panel < panels.end && candidates.asks(); ++panel) {
    const Panels one = {panel, panel + 1};
    const float* of_panel = c + (panel - panels.begin) * nr;
    const double panel_top = masked_maximum(in_query(scan, query, one, of_panel));
    if (panel_top == -INFINITY || panel_top * a.packed_inverse + error < candidates.enter) continue;
    collect(scan, query, {row, one, scan.columns->rounding(panel), of_panel}, candidates);
  }
}

}  // namespace

double largest_rounding(const Columns& columns, Panels panels) {
  double largest = 0;
  for (int64_t panel = panels.begin; panel < panels.end; ++panel)
    largest = std::max(largest, columns.rounding(panel));
  return largest;
}

MaximumArgs in_query(const Scan& scan, const Query& query, Panels panels, const float* c) {
  const int64_t nr = scan.kernel->nr;
  return {.c = c,
          .factors = scan.columns->inverses() + panels.begin * nr,
          .mask = scan.columns->mask(query.mask) + panels.begin * nr,
          .n = panels.size() * nr,
          .absolute = query.absolute};
}

void collect(const Scan& scan, const Query& query, const RowProducts& products,
             Candidates& candidates) {
  const Row& a = (*scan.rows)[products.row];
  const double error = gram_error(scan.d_model, a.rounding, products.rounding);
  const int64_t first = products.panels.begin * scan.kernel->nr;
  const int64_t end = std::min(scan.columns->size(), products.panels.end * scan.kernel->nr);
  for (int64_t column = first; column < end; ++column) {
    if (!scan.columns->counts(query.mask, column)) continue;
    const Row& b = (*scan.columns)[column];
    if (query.earlier && b.position >= a.position) continue;
    double value = double{products.c[column - first]} * b.packed_inverse * a.packed_inverse;
    if (query.absolute) value = std::abs(value);
    if (value + error < candidates.enter) continue;
    candidates.add({scan.columns, column, value - error, value + error});
  }
}

void reduce_row(const Scan& scan, const RowProducts& products, std::span<Candidates> candidates) {
  const size_t n_queries = scan.queries.size();
  const auto mine = candidates.subspan(static_cast<size_t>(products.row) * n_queries, n_queries);
  for (size_t q = 0; q < n_queries; ++q)
    if (mine[q].asks()) reduce(scan, scan.queries[q], products, mine[q]);
}

}  // namespace sluice::impl::cpu::selection
