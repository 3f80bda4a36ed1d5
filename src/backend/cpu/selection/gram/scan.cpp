// With a subspace a group of panels is first multiplied there, and what survives of each tile at
// full width.

#include "backend/cpu/selection/gram/scan.h"

#include <atomic>

#include "backend/cpu/selection/gram/survivors.h"
#include "core/threads.h"

namespace sluice::impl::cpu::selection {
namespace {

constexpr int64_t kPanelParts = 4;
constexpr int64_t kMergeRows = 64;

// Below this many multiplications a parallel region costs more than it saves.
constexpr int64_t kThreadWork = int64_t{1} << 20;

int64_t panels_worth_a_thread(const Scan& scan) {
  return 1 + kThreadWork / (scan.rows->size() * scan.kernel->nr * scan.d_model);
}

struct ScanScratch {
  std::vector<float> products;
  std::vector<Survivors> survivors;
};

// One group of panels; products have room for it.
Pairs scan_group(const Scan& scan, Range rows, Panels group, ScanScratch& scratch,
                 std::span<Candidates> candidates) {
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
      Candidates& found = candidates[static_cast<size_t>(row) * scan.queries.size() + q];
      if (found.asks())
        reduce_survivors(scan, scan.queries[q], {row, group, rounding, of_row(row)}, mine, found);
    }
  }
  const int64_t columns = std::min(scan.columns->size(), group.end * nr) - group.begin * nr;
  return {n, rows.size() * columns - n};
}

// Products of some rows with some panels, reduced group by group.
Pairs scan_part(const Scan& scan, Range rows, Panels panels, ScanScratch& scratch,
                std::span<Candidates> candidates) {
  Pairs pairs;
  const auto room = static_cast<size_t>(rows.size() * kGroupPanels * scan.kernel->nr);
  scratch.products.resize(std::max(scratch.products.size(), room));
  for (int64_t first = panels.begin; first < panels.end; first += kGroupPanels) {
    const Panels group = {first, std::min(first + kGroupPanels, panels.end)};
    const Pairs some = scan_group(scan, rows, group, scratch, candidates);
    pairs.multiplied += some.multiplied;
    pairs.dropped += some.dropped;
  }
  return pairs;
}

}  // namespace

// Panels are cut first: a part of them meets many rows while it is in cache. But every part needs
// candidates of its own, so with few panels or many threads the rows are cut too.
Pairs Scan::run(std::span<Candidates> candidates, Parts& parts) const {
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
  // body(candidate, that of a later part) of all rows.
  const auto with_later_parts = [&](const auto& body) {
    if (panel_parts == 1) return;
    parallel_for(n_rows, kMergeRows, [&](int64_t begin, int64_t end) {
      for (int64_t part = 1; part < panel_parts; ++part)
        of_rows({begin, end},
                [&](size_t c) { body(candidates[c], parts[static_cast<size_t>(part - 1)][c]); });
    });
  };
  // Before the first part begins, which raises what the others start from.
  with_later_parts([](const Candidates& first, Candidates& later) { later.ask_like(first); });
  std::atomic<int64_t> multiplied = 0, dropped = 0;
  parallel_for(row_parts * panel_parts, 1, [&](int64_t begin, int64_t end) {
    thread_local ScanScratch scratch;
    for (int64_t i = begin; i < end; ++i) {
      const Range mine = Range{0, n_rows}.part(i / panel_parts, row_parts);
      const int64_t part = i % panel_parts;
      const std::span<Candidates> found =
          part == 0 ? candidates : std::span(parts[static_cast<size_t>(part - 1)]);
      const Pairs pairs =
          scan_part(*this, mine, Panels{0, n_panels}.part(part, panel_parts), scratch, found);
      multiplied += pairs.multiplied;
      dropped += pairs.dropped;
    }
  });
  with_later_parts([](Candidates& first, const Candidates& later) { first.take_over(later); });
  return {multiplied, dropped};
}

Pairs Scan::try_subspace(std::span<Candidates> candidates) const {
  const int64_t n_panels = std::min(subspace->columns().size() / kernel->nr, kGroupPanels);
  const Range all{0, subspace->rows().size()};
  const Panels sample{0, n_panels};
  ScanScratch scratch;
  scratch.products.resize(static_cast<size_t>(all.size() * n_panels * kernel->nr));
  find_survivors(*this, all, sample, scratch.products, candidates, scratch.survivors);
  const SurvivingRows surviving{scratch.survivors, all, sample};
  Pairs pairs;
  for (int64_t row = 0; row < all.end; row += kernel->mr)
    for (int64_t panel = 0; panel < n_panels; ++panel)
      pairs.multiplied +=
          surviving({row, std::min(row + kernel->mr, all.end)}, panel).size() * kernel->nr;
  pairs.dropped = all.size() * n_panels * kernel->nr - pairs.multiplied;
  return pairs;
}

int64_t Scan::multiply(std::vector<float>& products) const {
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

void Scan::collect_row(const std::vector<float>& products, int64_t row,
                       std::span<Candidates> candidates) const {
  const int64_t n_panels = columns->n_panels(), stride = n_panels * kernel->nr;
  if (n_panels == 0) return;
  const Panels all = {0, n_panels};
  reduce_row(*this, {row, all, largest_rounding(*columns, all), products.data() + row * stride},
             candidates);
}

}  // namespace sluice::impl::cpu::selection
