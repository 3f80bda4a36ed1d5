#include "backend/cpu/attention/baseline/baseline.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>

#include "backend/cpu/attention/baseline/chooser.h"
#include "backend/cpu/primitives/rows.h"
#include "backend/cpu/primitives/score_rows.h"
#include "core/threads.h"

namespace sluice::impl::cpu::baseline {
namespace {

// Keys that all queries of a group pass over while they are near: 64 KiB at head_dim 64.
constexpr int64_t kPassKeys = 256;

std::unique_ptr<Chooser> make_chooser(const BaselineSpec& spec) {
  switch (spec.kind) {
    case BaselineKind::kWindow:
      return make_window(spec);
    case BaselineKind::kQuest:
      return make_quest(spec);
    case BaselineKind::kPooled:
      return make_pooled(spec);
    case BaselineKind::kOracle:
      return make_oracle(spec);
  }
  SLUICE_CHECK(!"unknown baseline");
}

class Attention : public BaselineAttention {
 public:
  explicit Attention(const BaselineSpec& spec) : spec_(spec), chooser_(make_chooser(spec)) {
    SLUICE_CHECK(spec.keep > 0 && spec.keep <= 1 && spec.context > 0 && spec.n_kv_heads > 0 &&
                 spec.n_heads % spec.n_kv_heads == 0);
    const auto size = static_cast<size_t>(spec.n_kv_heads * spec.capacity * spec.head_dim);
    keys_.resize(size);
    values_.resize(size);
  }

  void attend(const AttendBaselineArgs& args) override {
    if (args.queries.dtype() == DType::kBF16)
      attend_rows<BFloat16>(args);
    else
      attend_rows<float>(args);
  }

  void reset() override { n_tokens_ = keys_read_ = 0; }
  CacheBytes bytes() const override {
    return {.exact = 2 * n_tokens_ * spec_.n_kv_heads * spec_.head_dim * element_bytes(spec_.dtype),
            .clusters = 0};
  }
  int64_t keys_read() const override { return keys_read_; }

 private:
  CachedKeys cached() const {
    return {.rows = keys_.data(),
            .capacity = spec_.capacity,
            .head_dim = spec_.head_dim,
            .n_tokens = n_tokens_};
  }

  // rows: (n, n_kv_heads, head_dim), to (n_kv_heads, capacity, head_dim) from n_tokens_ on.
  template <typename T>
  void store(const ConstTensor& rows, std::vector<float>& to) const {
    parallel_for(rows.rows(), 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        for (int64_t head = 0; head < spec_.n_kv_heads; ++head)
          std::transform(rows.row<T>(i) + head * spec_.head_dim,
                         rows.row<T>(i) + (head + 1) * spec_.head_dim,
                         to.data() + (head * spec_.capacity + n_tokens_ + i) * spec_.head_dim,
                         [](T x) { return to_float(x); });
    });
  }

  template <typename T>
  void attend_rows(const AttendBaselineArgs& args) {
    const int64_t first = n_tokens_, n = args.queries.rows();
    SLUICE_CHECK(first + n <= spec_.capacity);
    if (n == 0) return;
    store<T>(args.keys, keys_);
    store<T>(args.values, values_);
    n_tokens_ += n;
    chooser_->take_in(cached(), first);
    const int64_t last_block = (n_tokens_ - 1) / kBaselineBlock;
    const int64_t n_tiles = last_block - first / kBaselineBlock + 1;
    std::atomic<int64_t> read = 0;
    // The last tiles, which have most keys, first.
    parallel_each(n_tiles * spec_.n_heads, [&](int64_t item) {
      const int64_t begin = (last_block - item / spec_.n_heads) * kBaselineBlock;
      const int64_t row = std::max(begin - first, int64_t{0});
      const int64_t end = std::min(begin + kBaselineBlock - first, n);
      read +=
          attend_tile<T>(args, {.first = first, .begin = row, .end = end}, item % spec_.n_heads);
    });
    keys_read_ += read;
  }

  // Rows [begin, end) of a pass whose first position is `first`: those of one block.
  struct Tile {
    int64_t first, begin, end;
  };
  // How many keys the queries of one head read.
  template <typename T>
  int64_t attend_tile(const AttendBaselineArgs& args, const Tile& tile, int64_t head) {
    const int64_t dim = spec_.head_dim, row = tile.begin, n = tile.end - row;
    thread_local std::vector<float> queries, sums;  // (n, head_dim)
    queries.resize(static_cast<size_t>(n * dim));
    sums.assign(queries.size(), 0.0f);
    for (int64_t i = 0; i < n; ++i) {
      const T* from = args.queries.row<T>(row + i) + head * dim;
      std::transform(from, from + dim, queries.data() + i * dim, [](T x) { return to_float(x); });
    }
    int64_t read = 0;
    const int64_t together = chooser_->group();
    for (int64_t i = 0; i < n; i += together)
      read += attend_group({.kv_head = head / (spec_.n_heads / spec_.n_kv_heads),
                            .first = tile.first + row + i,
                            .n = std::min(together, n - i),
                            .queries = queries.data() + i * dim},
                           sums.data() + i * dim);
    for (int64_t i = 0; i < n; ++i)
      std::transform(sums.data() + i * dim, sums.data() + (i + 1) * dim,
                     args.out.row<T>(row + i) + head * dim,
                     [](float x) { return from_float<T>(x); });
    return read;
  }

  // Exact attention on the keys chosen. out: (n, head_dim), zeros.
  int64_t attend_group(const QueryGroup& group, float* out) const {
    const int64_t dim = spec_.head_dim;
    thread_local std::vector<KeyRange> ranges;
    chooser_->choose(cached(), group, ranges);
    std::vector<primitives::SoftmaxState> states(static_cast<size_t>(group.n), {-INFINITY, 0.0f});
    std::array<float, kPassKeys> scores;
    int64_t read = 0;
    for (const KeyRange& range : ranges)
      for (int64_t begin = range.begin; begin < range.end; begin += kPassKeys) {
        const int64_t end = std::min(begin + kPassKeys, range.end);
        const float* keys = cached().row(group.kv_head, begin);
        const float* values = values_.data() + (keys - keys_.data());
        for (int64_t i = 0; i < group.n; ++i) {
          const int64_t n = std::min(end, group.first + i + 1) - begin;
          if (n <= 0) continue;
          primitives::dot_rows(group.queries + i * dim, keys, dim, n, dim, scores.data());
          const float kept = primitives::softmax_step(spec_.scale, n, scores.data(),
                                                      states[static_cast<size_t>(i)]);
          primitives::scale(kept, dim, out + i * dim);
          primitives::mix_rows(scores.data(), values, dim, n, dim, out + i * dim);
          read += n;
        }
      }
    for (int64_t i = 0; i < group.n; ++i) {
      primitives::scale(1.0f / states[static_cast<size_t>(i)].total, dim, out + i * dim);
      read += chooser_->keys_to_choose(group.first + i);
    }
    return read;
  }

  BaselineSpec spec_;
  std::unique_ptr<Chooser> chooser_;
  int64_t n_tokens_ = 0, keys_read_ = 0;
  std::vector<float> keys_, values_;  // (n_kv_heads, capacity, head_dim)
};

}  // namespace

std::unique_ptr<BaselineAttention> make_attention(const BaselineSpec& spec) {
  return std::make_unique<Attention>(spec);
}

}  // namespace sluice::impl::cpu::baseline
