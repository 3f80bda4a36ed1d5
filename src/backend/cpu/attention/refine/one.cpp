#include "backend/cpu/attention/refine/one.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "backend/cpu/attention/common/group.h"
#include "backend/cpu/attention/refine/estimate.h"
#include "backend/cpu/primitives/rows.h"

namespace sluice::impl::cpu::refine {
namespace {

using primitives::GroupRows;
using primitives::NativeGroup;

// Rows of keys and values that lie side by side.
template <typename T>
struct Run {
  const T* keys;    // (n, head_dim)
  const T* values;  // (n, head_dim)
  int64_t n;
};

// Of one thread, kept for its next query.
struct OneScratch {
  std::vector<float> query, sums;                   // (head_dim)
  std::vector<float> scores;                        // (keys at hand, and kRows more)
  std::vector<BFloat16> packed, weights;            // of the native kernels
  std::vector<float> masses, errors, asks, counts;  // (n_clusters)
};

template <typename T>
class RowReader {
 public:
  RowReader(const RefineSpec& spec, const OneQuery<T>& q, OneScratch& scratch)
      : spec_(spec), q_(q), s_(scratch), far_(*q.settled) {
    s_.query.resize(static_cast<size_t>(spec.head_dim));
    std::transform(q.query, q.query + spec.head_dim, s_.query.begin(),
                   [](T x) { return to_float(x); });
    s_.sums.assign(static_cast<size_t>(spec.head_dim), 0.0f);
    // f32 is exact to its own round-off, so it goes without the native kernels.
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (spec.head_dim % NativeGroup::kDim == 0) native_ = primitives::native_group();
      if (native_ == nullptr) return;
      s_.packed.resize(static_cast<size_t>(NativeGroup::packed_elements(1, spec.head_dim)));
      native_->pack(q.query, 1, spec.head_dim, s_.packed.data());
    }
  }

  int64_t attend() {
    std::vector<Run<T>> runs;
    int64_t opened = 0;
    if (q_.border > 0) runs.push_back(settled(0, spec_.sinks));
    if (q_.border < q_.n_tokens)
      runs.push_back(
          {q_.tokens->key(q_.border), q_.tokens->value(q_.border), q_.n_tokens - q_.border});
    read(runs);
    runs.clear();
    if (q_.kind == HeadKind::kDense && q_.border > 0) {
      opened = q_.border - spec_.sinks;
      runs.push_back(settled(spec_.sinks, opened));
    }
    const int64_t n_clusters = far_.clusters_of(q_.n_parts);
    if (n_clusters > 0) {
      read_means(n_clusters);
      opened = add_opened(n_clusters, runs);
    }
    read(runs);
    primitives::scale(1.0f / state_.total, spec_.head_dim, s_.sums.data());
    std::transform(s_.sums.begin(), s_.sums.end(), q_.out,
                   [](float x) { return from_float<T>(x); });
    return opened;
  }

 private:
  // to: room for 2 n rows that are kept as int8.
  Run<T> settled(int64_t row, int64_t n, T* to = nullptr) const {
    const auto rows = far_.rows(row, n, spec_.head_dim, to);
    return {rows.keys, rows.values, n};
  }

  static size_t scores_room(int64_t n) { return static_cast<size_t>(n + NativeGroup::kRows); }

  // May write up to kRows scores behind the last.
  void dot(const T* keys, int64_t n, float* scores) const {
    const int64_t hd = spec_.head_dim;
    if constexpr (std::is_same_v<T, BFloat16>)
      if (native_ != nullptr) return native_->dot({keys, n, hd, 1, scores, n}, s_.packed.data());
    primitives::dot_rows(s_.query.data(), keys, hd, n, hd, scores);
  }

  // sums += scores of the rows times values.
  void mix(const float* scores, const T* values, int64_t n) {
    const int64_t hd = spec_.head_dim;
    if constexpr (std::is_same_v<T, BFloat16>)
      if (native_ != nullptr) {
        s_.weights.resize(scores_room(n));
        attention::narrow_weights(scores, n, s_.weights.data());
        return native_->mix({values, n, hd, 1, nullptr, n}, s_.weights.data(), s_.sums.data());
      }
    primitives::mix_rows(scores, values, hd, n, hd, s_.sums.data());
  }

  // One step of softmax over all rows of `runs`.
  void read(const std::vector<Run<T>>& runs) {
    const int64_t hd = spec_.head_dim;
    int64_t n = 0;
    for (const Run<T>& run : runs) n += run.n;
    s_.scores.resize(scores_room(n));
    float* scores = s_.scores.data();
    for (const Run<T>& run : runs) {
      dot(run.keys, run.n, scores);
      scores += run.n;
    }
    primitives::scale(primitives::softmax_step(spec_.scale, n, s_.scores.data(), state_), hd,
                      s_.sums.data());
    scores = s_.scores.data();
    for (const Run<T>& run : runs) {
      mix(scores, run.values, run.n);
      scores += run.n;
    }
  }

  // Decides, then reads the means of what stays closed.
  void read_means(int64_t n) {
    const int64_t hd = spec_.head_dim;
    s_.scores.resize(scores_room(n));
    for (auto* row : {&s_.masses, &s_.errors, &s_.counts}) row->resize(static_cast<size_t>(n));
    s_.asks.assign(static_cast<size_t>(n), 0.0f);
    dot(far_.mean_keys.data(), n, s_.scores.data());
    const Squares squares = group_squares(s_.query.data(), *q_.dims, spec_.scale);
    ask({.estimate = RefineEstimate(spec_.page),
         .n = n,
         .scores = s_.scores.data(),
         .spreads = &far_.spreads,
         .rhos = far_.rhos.data(),
         .squares = &squares,
         .scale = spec_.scale,
         .near = state_.log_sum(),
         .delta = q_.delta,
         .masses = s_.masses.data(),
         .errors = s_.errors.data(),
         .asks = s_.asks.data()});
    for (size_t c = 0; c < static_cast<size_t>(n); ++c)
      s_.counts[c] = static_cast<float>(spec_.page) * (1 - s_.asks[c]);
    primitives::scale(
        primitives::softmax_step(spec_.scale, n, s_.scores.data(), state_, s_.counts.data()), hd,
        s_.sums.data());
    mix(s_.scores.data(), far_.mean_values.data(), n);
  }

  // Members of neighbouring opened clusters make one run.
  int64_t add_opened(int64_t n_clusters, std::vector<Run<T>>& runs) const {
    thread_local std::vector<T> expanded;
    std::vector<std::pair<int64_t, int64_t>> found;  // first row, rows
    int64_t opened = 0;
    for (size_t c = 0; c < static_cast<size_t>(n_clusters); ++c) {
      if (s_.asks[c] == 0) continue;
      const int64_t row = spec_.sinks + static_cast<int64_t>(c) * spec_.page;
      if (!found.empty() && found.back().first + found.back().second == row)
        found.back().second += spec_.page;
      else
        found.emplace_back(row, spec_.page);
      opened += spec_.page;
    }
    if (spec_.members == CacheKind::kInt8)
      expanded.resize(static_cast<size_t>(2 * opened * spec_.head_dim));
    T* to = expanded.data();
    for (const auto& [row, n] : found) {
      runs.push_back(settled(row, n, to));
      to += 2 * n * spec_.head_dim;
    }
    return opened;
  }

  const RefineSpec& spec_;
  const OneQuery<T>& q_;
  OneScratch& s_;
  const Settled<T>& far_;
  const NativeGroup* native_ = nullptr;
  primitives::SoftmaxState state_{-INFINITY, 0.0f};
};

}  // namespace

template <typename T>
int64_t attend_one(const RefineSpec& spec, const OneQuery<T>& q) {
  thread_local OneScratch scratch;
  return RowReader<T>(spec, q, scratch).attend();
}

template int64_t attend_one(const RefineSpec&, const OneQuery<float>&);
template int64_t attend_one(const RefineSpec&, const OneQuery<BFloat16>&);

}  // namespace sluice::impl::cpu::refine
