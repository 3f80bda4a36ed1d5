#include "backend/cpu/selection/gram/survivors.h"

#include <bit>

namespace sluice::impl::cpu::selection {
namespace {

// A float below x, by more than the few roundings of a cosine in float32.
float just_below(double x) { return static_cast<float>(x - 0x1p-20); }

// Coordinates of one row times those of a group of panels tell what can matter in a comparison;
// and what is reached, which helps to tell.
Survivors survivors_of(const Scan& scan, const Query& query, const RowProducts& products,
                       Candidates& candidates) {
  const int64_t nr = scan.kernel->nr;
  const auto [row, panels, rounding, c] = products;
  const Row& a = scan.subspace->rows()[row];
  BoundArgs args{.c = c,
                 .residuals = scan.subspace->columns().residuals() + panels.begin * nr,
                 .mask = scan.columns->mask(query.mask) + panels.begin * nr,
                 .n = panels.size() * nr,
                 .residual = a.residual,
                 .absolute = query.absolute};
  const double error = scan.subspace->error(a.rounding, rounding);
  const Survivors found = bound_panels(args, {nr, just_below(candidates.enter - error)});
  if (found == 0 || query.earlier) return found;
  args.residual = -a.residual;
  const double before = candidates.enter;
  candidates.raise(masked_bound(args) - error);
  if (!candidates.asks()) return 0;
  if (candidates.enter == before) return found;
  args.residual = a.residual;
  return bound_panels(args, {nr, just_below(candidates.enter - error)});
}

}  // namespace

void find_survivors(const Scan& scan, Range rows, Panels group, std::vector<float>& products,
                    std::span<Candidates> candidates, std::vector<Survivors>& survivors) {
  const Subspace& subspace = *scan.subspace;
  const int64_t stride = group.size() * scan.kernel->nr;
  multiply_panels({scan.kernel, subspace.rank(), &subspace.rows(), &subspace.columns(), {}}, rows,
                  group, {products.data(), stride}, whole);
  const double rounding = largest_rounding(subspace.columns(), group);
  survivors.assign(static_cast<size_t>(rows.size()), 0);
  for (int64_t row = rows.begin; row < rows.end; ++row)
    for (size_t q = 0; q < scan.queries.size(); ++q) {
      Candidates& mine = candidates[static_cast<size_t>(row) * scan.queries.size() + q];
      const float* c = products.data() + (row - rows.begin) * stride;
      if (mine.asks())
        survivors[static_cast<size_t>(row - rows.begin)] |=
            survivors_of(scan, scan.queries[q], {row, group, rounding, c}, mine);
    }
}

void reduce_survivors(const Scan& scan, const Query& query, const RowProducts& products,
                      Survivors survivors, Candidates& candidates) {
  const int64_t nr = scan.kernel->nr;
  const auto [row, panels, rounding, c] = products;
  const Row& a = (*scan.rows)[row];
  if (a.packed_inverse > 0) {
    const double error = gram_error(scan.d_model, a.rounding, rounding);
    const float limit = just_below(candidates.enter - error) / a.packed_inverse;
    survivors &= masked_panels(in_query(scan, query, panels, c), {nr, limit});
  }
  for (; survivors != 0 && candidates.asks(); survivors &= survivors - 1) {
    const int64_t i = std::countr_zero(survivors), panel = panels.begin + i;
    collect(scan, query, {row, {panel, panel + 1}, scan.columns->rounding(panel), c + i * nr},
            candidates);
  }
}

}  // namespace sluice::impl::cpu::selection
