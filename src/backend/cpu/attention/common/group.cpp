#include "backend/cpu/attention/common/group.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <type_traits>

#include "backend/cpu/attention/common/tile.h"
#include "backend/cpu/primitives/rows.h"

namespace sluice::impl::cpu::attention {

using primitives::GroupRows;
using primitives::NativeGroup;
using primitives::NativeInt8Group;

namespace {

const NativeInt8Group* native_int8_group() {
  const NativeInt8Group* fastest = primitives::int8_group_i8mm();
  return fastest != nullptr ? fastest : primitives::int8_group_dotprod();
}

}  // namespace

void narrow_weights(const float* scores, int64_t n, BFloat16* weights) {
  primitives::narrow(scores, n, weights);
  std::fill(weights + n, weights + round_up(n, NativeGroup::kRows), BFloat16{});
}

template <typename T>
void QueryGroup<T>::load(const T* queries, const GroupShape& shape) {
  shape_ = shape;
  scores_.resize(static_cast<size_t>(shape_.n_queries * kBlock));
  sums_.assign(static_cast<size_t>(shape_.n_queries * shape_.head_dim), 0.0f);
  states_.assign(static_cast<size_t>(shape_.n_queries), {-INFINITY, 0.0f});
  native_ = nullptr;
  native_int8_ = nullptr;
  // f32 is exact to its own round-off, so it goes without the native kernels.
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (!shape.int8 && shape_.head_dim % NativeGroup::kDim == 0)
      native_ = primitives::native_group();
    if (shape.int8 && shape_.head_dim % NativeInt8Group::kDim == 0 &&
        shape_.head_dim <= NativeInt8Group::kMostDim)
      native_int8_ = native_int8_group();
  }
  pack(queries);
}

template <typename T>
void QueryGroup<T>::pack(const T* queries) {
  const int64_t n = shape_.n_queries * shape_.head_dim;
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (native_ != nullptr) {
      packed_.resize(
          static_cast<size_t>(NativeGroup::packed_elements(shape_.n_queries, shape_.head_dim)));
      weights_.resize(scores_.size());
      return native_->pack(queries, shape_.n_queries, shape_.head_dim, packed_.data());
    }
  }
  queries_.resize(static_cast<size_t>(n));
  std::transform(queries, queries + n, queries_.begin(), [](T x) { return to_float(x); });
  if (native_int8_ == nullptr) return;
  terms_.resize(static_cast<size_t>(2 * n));
  query_scales_.resize(static_cast<size_t>(shape_.n_queries));
  native_int8_->pack(queries_.data(), shape_.n_queries, shape_.head_dim, terms_.data(),
                     query_scales_.data());
}

// Scores of a block become weights, and earlier sums follow the new maximum.
template <typename T>
void QueryGroup<T>::soften(int64_t n) {
  for (int64_t q = 0; q < shape_.n_queries; ++q) {
    float* scores = scores_.data() + q * kBlock;
    if (shape_.cap > 0) primitives::soft_cap(shape_.cap, n, scores);
    const float correction =
        primitives::softmax_step(shape_.scale, n, scores, states_[static_cast<size_t>(q)]);
    if (correction != 1.0f) primitives::scale(correction, shape_.head_dim, sums_of(q));
    if (native_ == nullptr) continue;
    BFloat16* weights = weights_.data() + q * kBlock;
    narrow_weights(scores, n, weights);
  }
}

template <typename T>
void QueryGroup<T>::dot(const GroupRows<T>& keys) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (native_ != nullptr) return native_->dot(keys, packed_.data());
  }
  primitives::dot_group(keys, queries_.data());
}

template <typename T>
void QueryGroup<T>::mix(const GroupRows<T>& values) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (native_ != nullptr) return native_->mix(values, weights_.data(), sums_.data());
  }
  primitives::mix_group(values, sums_.data());
}

template <typename T>
void QueryGroup<T>::visit(const T* keys, const T* values, int64_t n) {
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t count = std::min(kBlock, n - first);
    GroupRows<T> rows{.rows = keys + first * shape_.head_dim,
                      .n = count,
                      .d = shape_.head_dim,
                      .n_queries = shape_.n_queries,
                      .scores = scores_.data(),
                      .score_stride = kBlock,
                      .next = values + first * shape_.head_dim,
                      .n_next = count};
    dot(rows);
    soften(count);
    rows.rows = rows.next;
    rows.n_next = std::min(kBlock, n - first - count);
    rows.next = keys + (first + count) * shape_.head_dim;
    mix(rows);
  }
}

template <typename T>
void QueryGroup<T>::visit(const Int8Rows& all_keys, const Int8Rows& all_values, int64_t n) {
  const auto scale_scores = [&](const float* scales, int64_t count) {
    for (int64_t q = 0; q < shape_.n_queries; ++q)
      std::transform(scales, scales + count, scores_.data() + q * kBlock,
                     scores_.data() + q * kBlock, std::multiplies<>());
  };
  for (int64_t first = 0; first < n; first += kBlock) {
    const Int8Rows keys = all_keys.from(first, shape_.head_dim),
                   values = all_values.from(first, shape_.head_dim);
    const int64_t count = std::min(kBlock, n - first);
    GroupRows<int8_t> rows{.rows = keys.rows,
                           .n = count,
                           .d = shape_.head_dim,
                           .n_queries = shape_.n_queries,
                           .scores = scores_.data(),
                           .score_stride = kBlock};
    if (native_int8_ != nullptr) {
      native_int8_->dot(rows, {terms_.data(), query_scales_.data()}, keys.scales);
      soften(count);
      rows.rows = values.rows;
      native_int8_->mix(rows, values.scales, sums_.data());
      continue;
    }
    rows.next = values.rows;
    rows.n_next = count;
    primitives::dot_group(rows, queries_.data());
    scale_scores(keys.scales, count);
    soften(count);
    scale_scores(values.scales, count);
    rows.rows = values.rows;
    rows.next = keys.rows + count * shape_.head_dim;
    rows.n_next = std::min(kBlock, n - first - count);
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
  const float* sums = part + 2 * shape_.n_queries;
  for (int64_t q = 0; q < shape_.n_queries; ++q, part += 2, sums += shape_.head_dim) {
    primitives::SoftmaxState& state = states_[static_cast<size_t>(q)];
    const float maximum = std::max(state.maximum, part[0]);
    if (maximum == -INFINITY) continue;
    const float own = std::exp(state.maximum - maximum), other = std::exp(part[0] - maximum);
    state = {maximum, state.total * own + part[1] * other};
    for (int64_t i = 0; i < shape_.head_dim; ++i)
      sums_of(q)[i] = sums_of(q)[i] * own + sums[i] * other;
  }
}

template <typename T>
void QueryGroup<T>::store(T* out) {
  for (int64_t q = 0; q < shape_.n_queries; ++q, out += shape_.head_dim) {
    float* sums = sums_of(q);
    primitives::scale(1.0f / states_[static_cast<size_t>(q)].total, shape_.head_dim, sums);
    std::transform(sums, sums + shape_.head_dim, out, [](float x) { return from_float<T>(x); });
  }
}

template class QueryGroup<float>;
template class QueryGroup<BFloat16>;

}  // namespace sluice::impl::cpu::attention
