// Blocking as in linear_packed.cpp, from the inside out: a register tile of mr x nr; kGramDepth of
// k, so that a slice of a panel stays in the first cache; a group of tiles that meets it there; all
// rows of the block; kGroupPanels panels, whose products stay in the second cache until reduced.
// With a subspace a group is first multiplied there, and what survives of each tile at full width.

#include "backend/cpu/gram_scan.h"

#include <algorithm>
#include <atomic>
#include <bit>
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

Range whole(Range tile, int64_t) { return tile; }

int64_t panel_columns(const GramScan& scan, int64_t panel) {
  return std::min(scan.kernel->nr, scan.columns->size() - panel * scan.kernel->nr);
}

// Multiplies rows with a group of panels: of each tile those rows that `wanted` says.
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
          const Range tile = wanted(Range{i, std::min(i + kernel.mr, rows.end)}, panel);
          if (tile.size() == 0) continue;
          if (k == 0) pairs += tile.size() * panel_columns(scan, panel);
          kernel.tiles[tile.size() - 1]({.a = scan.rows->packed(tile.begin) + k * a_bytes,
                                         .a_stride = scan.rows->stride(),
                                         .b = scan.columns->panel(panel, k),
                                         .k = std::min(kGramDepth, k_end - k),
                                         .c = c.data + (tile.begin - rows.begin) * c.stride +
                                              (panel - panels.begin) * kernel.nr,
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

// Some panels in the eyes of one comparison.
MaximumArgs in_query(const GramScan& scan, const GramQuery& query, Panels panels, const float* c) {
  const int64_t nr = scan.kernel->nr;
  return {.c = c,
          .factors = scan.columns->inverses() + panels.begin * nr,
          .mask = scan.columns->mask(query.mask) + panels.begin * nr,
          .n = panels.size() * nr,
          .absolute = query.absolute};
}

// Most rows have nothing nearer in a group than what they have seen: one maximum tells.
void reduce(const GramScan& scan, const GramQuery& query, const RowProducts& products,
            GramCandidates& candidates) {
  const int64_t nr = scan.kernel->nr;
  const auto [row, panels, rounding, c] = products;
  const double top = masked_maximum(in_query(scan, query, panels, c));
  if (top == -INFINITY) return;
  const GramRow& a = (*scan.rows)[row];
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

// Which panels of a group a row must be multiplied with: bit i is panel i.
using Survivors = uint32_t;
static_assert(kGroupPanels <= 32);

// A float below x, by more than the few roundings of a cosine in float32.
float just_below(double x) { return static_cast<float>(x - 0x1p-20); }

// Coordinates of one row times those of a group of panels tell what can matter in a comparison;
// and what is reached, which helps to tell.
Survivors survivors_of(const GramScan& scan, const GramQuery& query, const RowProducts& products,
                       GramCandidates& candidates) {
  const int64_t nr = scan.kernel->nr;
  const auto [row, panels, rounding, c] = products;
  const GramRow& a = scan.subspace->rows()[row];
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

// Of the panels that survived and were multiplied, adds what matters.
void reduce_survivors(const GramScan& scan, const GramQuery& query, const RowProducts& products,
                      Survivors survivors, GramCandidates& candidates) {
  const int64_t nr = scan.kernel->nr;
  const auto [row, panels, rounding, c] = products;
  const GramRow& a = (*scan.rows)[row];
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

// The same for some rows, and all they ask.
void find_survivors(const GramScan& scan, Range rows, Panels group, std::vector<float>& products,
                    std::span<GramCandidates> candidates, std::vector<Survivors>& survivors) {
  const GramSubspace& subspace = *scan.subspace;
  const int64_t stride = group.size() * scan.kernel->nr;
  multiply_panels({scan.kernel, subspace.rank(), &subspace.rows(), &subspace.columns(), {}}, rows,
                  group, {products.data(), stride}, whole);
  const double rounding = largest_rounding(subspace.columns(), group);
  survivors.assign(static_cast<size_t>(rows.size()), 0);
  for (int64_t row = rows.begin; row < rows.end; ++row)
    for (size_t q = 0; q < scan.queries.size(); ++q) {
      GramCandidates& mine = candidates[static_cast<size_t>(row) * scan.queries.size() + q];
      const float* c = products.data() + (row - rows.begin) * stride;
      if (mine.asks())
        survivors[static_cast<size_t>(row - rows.begin)] |=
            survivors_of(scan, scan.queries[q], {row, group, rounding, c}, mine);
    }
}

// From the first to the last row of a tile that survives with a panel.
struct SurvivingRows {
  std::span<const Survivors> survivors;
  Range rows;
  Panels group;

  bool survives(int64_t row, int64_t panel) const {
    return (survivors[static_cast<size_t>(row - rows.begin)] >> (panel - group.begin) & 1) != 0;
  }
  Range operator()(Range tile, int64_t panel) const {
    while (tile.size() > 0 && !survives(tile.begin, panel)) ++tile.begin;
    while (tile.size() > 0 && !survives(tile.end - 1, panel)) --tile.end;
    return tile;
  }
};

struct ScanScratch {
  std::vector<float> products;
  std::vector<Survivors> survivors;
};

// One group of panels; products have room for it.
GramPairs scan_group(const GramScan& scan, Range rows, Panels group, ScanScratch& scratch,
                     std::span<GramCandidates> candidates) {
  const int64_t nr = scan.kernel->nr, stride = group.size() * nr;
  const Products products = {scratch.products.data(), stride};
  const auto of_row = [&](int64_t row) { return products.data + (row - rows.begin) * stride; };
  if (scan.subspace == nullptr) {
    const int64_t n = multiply_panels(scan, rows, group, products, whole);
    const double rounding = largest_rounding(*scan.columns, group);
    for (int64_t row = rows.begin; row < rows.end; ++row)
      reduce_row(scan, {row, group, rounding, of_row(row)}, candidates);
    return {.multiplied = n};
  }
  find_survivors(scan, rows, group, scratch.products, candidates, scratch.survivors);
  const SurvivingRows surviving{scratch.survivors, rows, group};
  const int64_t n = multiply_panels(scan, rows, group, products, surviving);
  const double rounding = largest_rounding(*scan.columns, group);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const Survivors mine = scratch.survivors[static_cast<size_t>(row - rows.begin)];
    for (size_t q = 0; q < scan.queries.size() && mine != 0; ++q) {
      GramCandidates& found = candidates[static_cast<size_t>(row) * scan.queries.size() + q];
      if (found.asks())
        reduce_survivors(scan, scan.queries[q], {row, group, rounding, of_row(row)}, mine, found);
    }
  }
  const int64_t columns = std::min(scan.columns->size(), group.end * nr) - group.begin * nr;
  return {n, rows.size() * columns - n};
}

// Products of some rows with some panels, reduced group by group.
GramPairs scan_part(const GramScan& scan, Range rows, Panels panels, ScanScratch& scratch,
                    std::span<GramCandidates> candidates) {
  GramPairs pairs;
  const auto room = static_cast<size_t>(rows.size() * kGroupPanels * scan.kernel->nr);
  scratch.products.resize(std::max(scratch.products.size(), room));
  for (int64_t first = panels.begin; first < panels.end; first += kGroupPanels) {
    const Panels group = {first, std::min(first + kGroupPanels, panels.end)};
    const GramPairs some = scan_group(scan, rows, group, scratch, candidates);
    pairs.multiplied += some.multiplied;
    pairs.dropped += some.dropped;
  }
  return pairs;
}

}  // namespace

// Panels are cut first: a part of them meets many rows while it is in cache. But every part needs
// candidates of its own, so with few panels or many threads the rows are cut too.
GramPairs GramScan::run(std::span<GramCandidates> candidates, Parts& parts) const {
  const int64_t n_panels = columns->n_panels(), n_rows = rows->size();
  if (n_panels == 0 || n_rows == 0) return {};
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
  std::atomic<int64_t> multiplied = 0, dropped = 0;
  parallel_for(row_parts * panel_parts, 1, [&](int64_t begin, int64_t end) {
    thread_local ScanScratch scratch;
    for (int64_t i = begin; i < end; ++i) {
      const Range mine = Range{0, n_rows}.part(i / panel_parts, row_parts);
      const int64_t part = i % panel_parts;
      std::span<GramCandidates> found = candidates;
      if (part > 0) {
        found = parts[static_cast<size_t>(part - 1)];
        of_rows(mine, [&](size_t c) { found[c].ask_like(candidates[c]); });
      }
      const GramPairs pairs =
          scan_part(*this, mine, Panels{0, n_panels}.part(part, panel_parts), scratch, found);
      multiplied += pairs.multiplied;
      dropped += pairs.dropped;
    }
  });
  parallel_for(n_rows, kMergeRows, [&](int64_t begin, int64_t end) {
    for (int64_t part = 1; part < panel_parts; ++part)
      of_rows({begin, end},
              [&](size_t c) { candidates[c].take_over(parts[static_cast<size_t>(part - 1)][c]); });
  });
  return {multiplied, dropped};
}

GramPairs GramScan::try_subspace(std::span<GramCandidates> candidates) const {
  const int64_t n_panels = std::min(subspace->columns().size() / kernel->nr, kGroupPanels);
  const Range all{0, subspace->rows().size()};
  const Panels sample{0, n_panels};
  ScanScratch scratch;
  scratch.products.resize(static_cast<size_t>(all.size() * n_panels * kernel->nr));
  find_survivors(*this, all, sample, scratch.products, candidates, scratch.survivors);
  const SurvivingRows surviving{scratch.survivors, all, sample};
  GramPairs pairs;
  for (int64_t row = 0; row < all.end; row += kernel->mr)
    for (int64_t panel = 0; panel < n_panels; ++panel)
      pairs.multiplied +=
          surviving({row, std::min(row + kernel->mr, all.end)}, panel).size() * kernel->nr;
  pairs.dropped = all.size() * n_panels * kernel->nr - pairs.multiplied;
  return pairs;
}

int64_t GramScan::multiply(std::vector<float>& products) const {
  const int64_t n_panels = columns->n_panels(), stride = n_panels * kernel->nr;
  products.resize(std::max(products.size(), static_cast<size_t>(rows->size() * stride)));
  std::vector<int64_t> pairs(static_cast<size_t>(n_panels));
  if (n_panels == 0) return 0;
  parallel_for(n_panels, panels_worth_a_thread(*this), [&](int64_t begin, int64_t end) {
    pairs[static_cast<size_t>(begin)] = multiply_panels(
        *this, {0, rows->size()}, {begin, end}, {products.data() + begin * kernel->nr, stride},
        [&](Range tile, int64_t panel) {
          const int64_t first = (*columns)[panel * kernel->nr].position;
          return (*rows)[tile.end - 1].position > first ? tile : Range{0, 0};
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
