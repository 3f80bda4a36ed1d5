// Blocks of keys by their true mass, mean over the queries of a block, which it takes dense
// attention to know: no estimate chooses fewer blocks of this size for the same mass.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "backend/cpu/attention/baseline/blocks.h"
#include "backend/cpu/primitives/score_rows.h"

namespace sluice::impl::cpu::baseline {
namespace {

class Oracle : public Chooser {
 public:
  explicit Oracle(const BaselineSpec& spec) : scale_(spec.scale), keep_(spec.keep) {}
  int64_t group() const override { return kBaselineBlock; }

  void choose(const CachedKeys& keys, const QueryGroup& group,
              std::vector<KeyRange>& read) const override {
    const int64_t own = group.first / kBaselineBlock, n_keys = group.first + group.n;
    thread_local std::vector<float> scores;  // (n, n_keys)
    scores.resize(static_cast<size_t>(group.n * n_keys));
    // All queries pass over a block of keys while it is near.
    for (int64_t block = 0; block <= own; ++block)
      for (int64_t i = 0; i < group.n; ++i) {
        const int64_t first = block * kBaselineBlock;
        primitives::dot_rows(group.queries + i * keys.head_dim, keys.row(group.kv_head, first),
                             keys.head_dim, std::min(kBaselineBlock, group.first + i + 1 - first),
                             keys.head_dim, scores.data() + i * n_keys + first);
      }
    std::vector<double> mass(static_cast<size_t>(own + 1));
    for (int64_t i = 0; i < group.n; ++i)
      add_masses(scores.data() + i * n_keys, group.first + i + 1, mass);
    fewest_blocks(std::move(mass), keep_, read);
  }

 private:
  // scores: (n), raw, of one query.
  void add_masses(float* scores, int64_t n, std::vector<double>& mass) const {
    primitives::SoftmaxState state{-INFINITY, 0.0f};
    primitives::softmax_step(scale_, n, scores, state);
    for (size_t block = 0; block < mass.size(); ++block) {
      const int64_t first = static_cast<int64_t>(block) * kBaselineBlock;
      mass[block] +=
          std::accumulate(scores + first, scores + std::min(first + kBaselineBlock, n), 0.0f) /
          state.total;
    }
  }

  float scale_;
  double keep_;
};

}  // namespace

std::unique_ptr<Chooser> make_oracle(const BaselineSpec& spec) {
  return std::make_unique<Oracle>(spec);
}

}  // namespace sluice::impl::cpu::baseline
