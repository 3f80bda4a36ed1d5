#include "eval/compare/refine_reads.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace sluice::impl {
namespace {

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

RefineKeys refine_keys(const LayerPlan& plan, HeadKind kind, int64_t first, int64_t n) {
  const int64_t sinks = whole_pages(plan.sinks, plan.refine.page);
  const bool alone = plan.refine.tile == 1;  // every query decides for itself
  RefineKeys keys;
  for (int64_t t = first; t < first + n; ++t) {
    const int64_t border = refine_border(t, plan.window, plan.refine.segment,
                                         alone ? plan.refine.early : plan.refine.segment);
    keys.dense += t + 1;
    keys.near += t + 1 - border + std::min(sinks, border);
    if (kind == HeadKind::kClusters && border > 0)
      keys.clusters += (border - sinks) / plan.refine.page;
  }
  return keys;
}

RefineKeys refine_encoder_keys(const LayerPlan& plan, HeadKind kind, int64_t n_tokens, int64_t n) {
  const int64_t border = n_tokens / plan.refine.segment * plan.refine.segment;
  const int64_t sinks = std::min(whole_pages(plan.sinks, plan.refine.page), border);
  const bool clusters = kind == HeadKind::kClusters;
  return {.near = n * (n_tokens - border + sinks),
          .clusters = clusters ? n * ((border - sinks) / plan.refine.page) : 0,
          .dense = n * n_tokens};
}

void RefineReads::add(const LayerPlan& plan, const RefineWindow& window,
                      std::span<const int64_t> opened) {
  const auto [n_heads, n_tokens, causal] = window;
  segment_ = plan.refine.segment;
  const auto n_kv_heads = static_cast<int64_t>(plan.heads.size());
  const int64_t n_blocks = (n_tokens + segment_ - 1) / segment_, group = n_heads / n_kv_heads;
  SLUICE_CHECK(static_cast<int64_t>(opened.size()) == n_blocks * n_heads);
  blocks_.resize(std::max(blocks_.size(), static_cast<size_t>(n_blocks)));
  for (int64_t b = 0; b < n_blocks; ++b) {
    Block& block = blocks_[static_cast<size_t>(b)];
    block.opened.resize(static_cast<size_t>(n_heads));
    const int64_t first = b * segment_, n = std::min(segment_, n_tokens - first);
    for (const HeadPlan& head : plan.heads) {
      const RefineKeys keys = causal ? refine_keys(plan, head.kind, first, n)
                                     : refine_encoder_keys(plan, head.kind, n_tokens, n);
      block.near += static_cast<double>(group * keys.near);
      block.clusters += static_cast<double>(group * keys.clusters);
      block.dense += static_cast<double>(group * keys.dense);
    }
    for (int64_t h = 0; h < n_heads; ++h)
      block.opened[static_cast<size_t>(h)] +=
          static_cast<double>(opened[static_cast<size_t>(b * n_heads + h)]);
  }
}

RefineReads::Block& RefineReads::Block::operator+=(const Block& other) {
  near += other.near;
  clusters += other.clusters;
  dense += other.dense;
  opened.resize(std::max(opened.size(), other.opened.size()));
  for (size_t h = 0; h < other.opened.size(); ++h) opened[h] += other.opened[h];
  return *this;
}

RefineReads& RefineReads::operator+=(const RefineReads& other) {
  if (other.segment_ > 0) segment_ = other.segment_;
  blocks_.resize(std::max(blocks_.size(), other.blocks_.size()));
  for (size_t b = 0; b < other.blocks_.size(); ++b) blocks_[b] += other.blocks_[b];
  return *this;
}

RefineReads::Block RefineReads::total() const {
  Block sum;
  for (const Block& block : blocks_) sum += block;
  return sum;
}

double RefineReads::near_fraction() const { return share(total().near, total().dense); }
double RefineReads::clusters_fraction() const { return share(total().clusters, total().dense); }
double RefineReads::opened_fraction() const { return share(sum_of(total().opened), total().dense); }

std::vector<double> RefineReads::opened_by_head() const {
  Block sum = total();
  const double dense = sum.dense / static_cast<double>(std::max<size_t>(sum.opened.size(), 1));
  for (double& opened : sum.opened) opened = share(opened, dense);
  return sum.opened;
}

std::vector<RefineReads::Position> RefineReads::by_position() const {
  std::vector<Position> positions;
  for (const Block& block : blocks_)
    positions.push_back({.begin = static_cast<int64_t>(positions.size()) * segment_,
                         .near = share(block.near, block.dense),
                         .clusters = share(block.clusters, block.dense),
                         .opened = share(sum_of(block.opened), block.dense)});
  return positions;
}

double RefineReads::keys() const {
  const Block sum = total();
  return sum.near + sum.clusters + sum_of(sum.opened);
}
double RefineReads::dense_keys() const { return total().dense; }

}  // namespace sluice::impl
