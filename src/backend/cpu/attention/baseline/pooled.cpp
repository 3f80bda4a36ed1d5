// Blocks of keys by the scores of mean queries and mean keys: the estimate of MInference (arXiv
// 2407.02490, its block-sparse heads) with the threshold on the cumulative mass of FlexPrefill
// (arXiv 2502.20766). One rule for all heads: their other patterns are left out.

#include <algorithm>
#include <cmath>

#include "backend/cpu/attention/baseline/blocks.h"
#include "backend/cpu/primitives/rows.h"
#include "backend/cpu/primitives/score_rows.h"

namespace sluice::impl::cpu::baseline {
namespace {

// rows: (n, head_dim).
void mean_row(const float* rows, int64_t n, int64_t head_dim, float* mean) {
  std::copy_n(rows, head_dim, mean);
  for (int64_t i = 1; i < n; ++i) primitives::add(rows + i * head_dim, head_dim, mean);
  primitives::scale(1.0f / static_cast<float>(n), head_dim, mean);
}

class Pooled : public Chooser {
 public:
  explicit Pooled(const BaselineSpec& spec)
      : n_kv_heads_(spec.n_kv_heads),
        head_dim_(spec.head_dim),
        capacity_(n_blocks(spec.capacity)),
        scale_(spec.scale),
        keep_(spec.keep),
        means_(static_cast<size_t>(n_kv_heads_ * capacity_ * head_dim_)) {}
  int64_t group() const override { return kBaselineBlock; }

  void take_in(const CachedKeys& keys, int64_t first) override {
    for (int64_t head = 0; head < n_kv_heads_; ++head)
      for (int64_t begin = first / kBaselineBlock * kBaselineBlock; begin < keys.n_tokens;
           begin += kBaselineBlock)
        mean_row(keys.row(head, begin), std::min(kBaselineBlock, keys.n_tokens - begin), head_dim_,
                 means_.data() + offset(head, begin / kBaselineBlock));
  }

  void choose(const CachedKeys&, const QueryGroup& group,
              std::vector<KeyRange>& read) const override {
    const int64_t n = group.first / kBaselineBlock + 1;
    std::vector<float> query(static_cast<size_t>(head_dim_)), scores(static_cast<size_t>(n));
    mean_row(group.queries, group.n, head_dim_, query.data());
    primitives::dot_rows(query.data(), means_.data() + offset(group.kv_head, 0), head_dim_, n,
                         head_dim_, scores.data());
    primitives::SoftmaxState state{-INFINITY, 0.0f};
    primitives::softmax_step(scale_, n, scores.data(), state);
    fewest_blocks({scores.begin(), scores.end()}, keep_, read);
  }

 private:
  size_t offset(int64_t kv_head, int64_t block) const {
    return static_cast<size_t>((kv_head * capacity_ + block) * head_dim_);
  }

  int64_t n_kv_heads_, head_dim_;
  int64_t capacity_;  // blocks
  float scale_;
  double keep_;
  std::vector<float> means_;  // (n_kv_heads, capacity, head_dim) of keys so far
};

}  // namespace

std::unique_ptr<Chooser> make_pooled(const BaselineSpec& spec) {
  return std::make_unique<Pooled>(spec);
}

}  // namespace sluice::impl::cpu::baseline
