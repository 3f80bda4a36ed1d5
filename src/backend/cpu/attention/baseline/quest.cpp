// Quest (arXiv 2406.10774): pages of neighbouring tokens, chosen by an upper bound of the scores of
// their keys, the same number for every query.

#include <algorithm>
#include <cmath>

#include "backend/cpu/attention/baseline/chooser.h"
#include "backend/cpu/primitives/score_rows.h"

namespace sluice::impl::cpu::baseline {
namespace {

class Quest : public Chooser {
 public:
  explicit Quest(const BaselineSpec& spec)
      : n_kv_heads_(spec.n_kv_heads),
        head_dim_(spec.head_dim),
        capacity_(spec.capacity / kBaselinePage),
        n_read_(baseline_pages(spec.keep, spec.context)) {
    const auto size = static_cast<size_t>(n_kv_heads_ * capacity_ * head_dim_);
    smallest_.resize(size);
    largest_.resize(size);
  }
  int64_t group() const override { return 1; }

  void take_in(const CachedKeys& keys, int64_t first) override {
    for (int64_t head = 0; head < n_kv_heads_; ++head)
      for (int64_t page = first / kBaselinePage; page < keys.n_tokens / kBaselinePage; ++page) {
        float* low = smallest_.data() + offset(head, page);
        float* high = largest_.data() + offset(head, page);
        std::copy_n(keys.row(head, page * kBaselinePage), head_dim_, low);
        std::copy_n(low, head_dim_, high);
        for (int64_t t = page * kBaselinePage + 1; t < (page + 1) * kBaselinePage; ++t)
          for (int64_t d = 0; d < head_dim_; ++d) {
            low[d] = std::min(low[d], keys.row(head, t)[d]);
            high[d] = std::max(high[d], keys.row(head, t)[d]);
          }
      }
  }

  void choose(const CachedKeys&, const QueryGroup& group,
              std::vector<KeyRange>& read) const override {
    read.clear();
    const int64_t own = group.first / kBaselinePage, n_between = own - 1;
    if (own < n_read_) return add_range(read, {0, group.first + 1});
    thread_local std::vector<float> bounds;
    find_bounds(group, n_between, bounds);
    thread_local std::vector<int64_t> order;  // index into bounds
    order.resize(static_cast<size_t>(n_between));
    for (int64_t i = 0; i < n_between; ++i) order[static_cast<size_t>(i)] = i;
    const auto end = order.begin() + (n_read_ - 2);
    std::nth_element(order.begin(), end, order.end(), [](int64_t a, int64_t b) {
      const float x = bounds[static_cast<size_t>(a)], y = bounds[static_cast<size_t>(b)];
      return x != y ? x > y : a < b;
    });
    std::sort(order.begin(), end);
    add_range(read, {0, kBaselinePage});
    for (auto i = order.begin(); i != end; ++i)
      add_range(read, {(*i + 1) * kBaselinePage, (*i + 2) * kBaselinePage});
    add_range(read, {own * kBaselinePage, group.first + 1});
  }

  // Of each page the smallest and the largest key: two rows, as a key and its value are.
  int64_t keys_to_choose(int64_t t) const override { return t / kBaselinePage + 1; }

 private:
  size_t offset(int64_t kv_head, int64_t page) const {
    return static_cast<size_t>((kv_head * capacity_ + page) * head_dim_);
  }

  // Of n pages from the second on. The larger of q min and q max is q max where q > 0, else q min.
  void find_bounds(const QueryGroup& group, int64_t n, std::vector<float>& bounds) const {
    thread_local std::vector<float> above, below, lower;
    const auto dim = static_cast<size_t>(head_dim_);
    above.resize(dim);
    below.resize(dim);
    for (size_t d = 0; d < dim; ++d) {
      above[d] = std::max(group.queries[d], 0.0f);
      below[d] = std::min(group.queries[d], 0.0f);
    }
    bounds.resize(static_cast<size_t>(n));
    lower.resize(static_cast<size_t>(n));
    const size_t second = offset(group.kv_head, 1);
    primitives::dot_rows(above.data(), largest_.data() + second, head_dim_, n, head_dim_,
                         bounds.data());
    primitives::dot_rows(below.data(), smallest_.data() + second, head_dim_, n, head_dim_,
                         lower.data());
    for (size_t i = 0; i < bounds.size(); ++i) {
      bounds[i] += lower[i];
      if (std::isnan(bounds[i])) bounds[i] = -INFINITY;  // has no order
    }
  }

  int64_t n_kv_heads_, head_dim_;
  int64_t capacity_;  // whole pages
  int64_t n_read_;    // pages, the first and the query's own among them
  // (n_kv_heads, capacity, head_dim), element by element, of whole pages.
  std::vector<float> smallest_, largest_;
};

}  // namespace

std::unique_ptr<Chooser> make_quest(const BaselineSpec& spec) {
  return std::make_unique<Quest>(spec);
}

}  // namespace sluice::impl::cpu::baseline
