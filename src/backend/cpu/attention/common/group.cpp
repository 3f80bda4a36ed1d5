#include "backend/cpu/attention/common/group.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "backend/cpu/attention/common/tile.h"
#include "backend/cpu/primitives/rows.h"

namespace sluice::impl::cpu::attention {

using primitives::GroupRows;
using primitives::NativeGroup;

template <typename T>
void QueryGroup<T>::load(const T* queries, int64_t n_queries, int64_t head_dim, float scale,
                         float cap) {
  n_queries_ = n_queries;
  head_dim_ = head_dim;
  scale_ = scale;
  cap_ = cap;
  const int64_t n = n_queries * head_dim;
  scores_.resize(static_cast<size_t>(n_queries * kBlock));
  sums_.assign(static_cast<size_t>(n), 0.0f);
  states_.assign(static_cast<size_t>(n_queries), {-INFINITY, 0.0f});
  if constexpr (std::is_same_v<T, BFloat16>) {
    native_ = head_dim % NativeGroup::kDim == 0 ? primitives::native_group() : nullptr;
    if (native_ != nullptr) {
      packed_.resize(static_cast<size_t>(NativeGroup::packed_elements(n_queries, head_dim)));
      weights_.resize(scores_.size());
      return native_->pack(queries, n_queries, head_dim, packed_.data());
    }
  }
  queries_.resize(static_cast<size_t>(n));
  std::transform(queries, queries + n, queries_.begin(), [](T x) { return to_float(x); });
}

// Scores of a block become weights, and earlier sums follow the new maximum.
template <typename T>
void QueryGroup<T>::soften(int64_t n) {
  for (int64_t q = 0; q < n_queries_; ++q) {
    float* scores = scores_.data() + q * kBlock;
    if (cap_ > 0) primitives::soft_cap(cap_, n, scores);
    const float correction =
        primitives::softmax_step(scale_, n, scores, states_[static_cast<size_t>(q)]);
    if (correction != 1.0f) primitives::scale(correction, head_dim_, sums_of(q));
    if (native_ == nullptr) continue;
    BFloat16* weights = weights_.data() + q * kBlock;
    primitives::narrow(scores, n, weights);
    std::fill(weights + n, weights + round_up(n, NativeGroup::kRows), BFloat16{});
  }
}

template <typename T>
void QueryGroup<T>::visit(const T* keys, const T* values, int64_t n) {
  for (int64_t first = 0; first < n; first += kBlock) {
    GroupRows<T> rows{.rows = keys + first * head_dim_,
                      .n = std::min(kBlock, n - first),
                      .d = head_dim_,
                      .n_queries = n_queries_,
                      .scores = scores_.data(),
                      .score_stride = kBlock};
    const T* block_values = values + first * head_dim_;
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (native_ != nullptr) {
        native_->dot(rows, packed_.data());
        soften(rows.n);
        rows.rows = block_values;
        native_->mix(rows, weights_.data(), sums_.data());
        continue;
      }
    }
    primitives::dot_group(rows, queries_.data());
    soften(rows.n);
    rows.rows = block_values;
    primitives::mix_group(rows, sums_.data());
  }
}

template <typename T>
void QueryGroup<T>::save(float* part) const {
  for (const primitives::SoftmaxState& state : states_) {
    *part++ = state.maximum;
    *part++ = state.total;
  }
  std::copy(sums_.begin(), sums_.end(), part);
}

template <typename T>
void QueryGroup<T>::add(const float* part) {
  const float* sums = part + 2 * n_queries_;
  for (int64_t q = 0; q < n_queries_; ++q, part += 2, sums += head_dim_) {
    primitives::SoftmaxState& state = states_[static_cast<size_t>(q)];
    const float maximum = std::max(state.maximum, part[0]);
    if (maximum == -INFINITY) continue;
    const float own = std::exp(state.maximum - maximum), other = std::exp(part[0] - maximum);
    state = {maximum, state.total * own + part[1] * other};
    for (int64_t i = 0; i < head_dim_; ++i) sums_of(q)[i] = sums_of(q)[i] * own + sums[i] * other;
  }
}

template <typename T>
void QueryGroup<T>::store(T* out) {
  for (int64_t q = 0; q < n_queries_; ++q, out += head_dim_) {
    float* sums = sums_of(q);
    primitives::scale(1.0f / states_[static_cast<size_t>(q)].total, head_dim_, sums);
    std::transform(sums, sums + head_dim_, out, [](float x) { return from_float<T>(x); });
  }
}

template class QueryGroup<float>;
template class QueryGroup<BFloat16>;

}  // namespace sluice::impl::cpu::attention
