#include "backend/cpu/attention/refine/settled.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/attention/refine/clusters.h"
#include "backend/cpu/primitives/int8_rows.h"
#include "backend/cpu/primitives/rows.h"

namespace sluice::impl::cpu::refine {
namespace {

template <typename T>
void widen_row(const T* from, int64_t n, float* to) {
  if constexpr (std::is_same_v<T, float>)
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
  else
    primitives::widen(from, n, to);
}

template <typename T>
void push_rounded(const float* from, int64_t n, std::vector<T>& to) {
  for (int64_t i = 0; i < n; ++i) to.push_back(from_float<T>(from[i]));
}

template <typename T>
void join(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// Appends a row as int8, and its scale.
template <typename T>
void push_small(const T* row, int64_t n, std::vector<int8_t>& to, std::vector<float>& scales) {
  to.resize(to.size() + static_cast<size_t>(n));
  scales.push_back(primitives::to_int8_row(row, n, to.data() + std::ssize(to) - n));
}

template <typename T>
void expand(const int8_t* from, const float* scales, int64_t n, int64_t dim, T* to) {
  for (int64_t i = 0; i < n; ++i, from += dim, to += dim)
    primitives::from_int8_row(from, scales[i], dim, to);
}

template <typename T>
int64_t size_of(const std::vector<T>& x) {
  return static_cast<int64_t>(x.size() * sizeof(T));
}

// mean (dim) of n rows of (n, dim), which become deviations from it. Returns the mean of their
// squared norms.
float deviate(float* rows, int64_t n, int64_t dim, float* mean) {
  mean_rows(rows, n, dim, mean);
  thread_local std::vector<float> negative;
  negative.assign(mean, mean + dim);
  primitives::scale(-1, dim, negative.data());
  double total = 0;
  for (int64_t i = 0; i < n; ++i) {
    float square;
    primitives::add(negative.data(), dim, rows + i * dim);
    primitives::dot_rows(rows + i * dim, rows + i * dim, dim, 1, dim, &square);
    total += double{square};
  }
  return static_cast<float>(total / static_cast<double>(n));
}

// Clusters of tokens [first, end), appended to `to`.
template <typename T>
void add_clusters(const RefineSpec& spec, const attention::HeadTokens<T>& tokens, int64_t first,
                  int64_t end, Settled<T>& to) {
  const int64_t n = end - first, hd = spec.head_dim;
  std::vector<float> keys(static_cast<size_t>(n * hd)), members(keys.size()), values(keys.size());
  std::vector<float> mean(static_cast<size_t>(hd));
  for (int64_t i = 0; i < n; ++i) widen_row(tokens.key(first + i), hd, keys.data() + i * hd);
  const Grouping groups = cluster_keys(keys.data(), n, hd, spec.page, spec.clusters);
  double norms = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = groups.order[static_cast<size_t>(i)];
    std::memcpy(members.data() + i * hd, keys.data() + row * hd,
                static_cast<size_t>(hd) * sizeof(float));
    const T *key = tokens.key(first + row), *value = tokens.value(first + row);
    widen_row(value, hd, values.data() + i * hd);
    if (spec.members == CacheKind::kInt8) {
      push_small(key, hd, to.small_keys, to.key_scales);
      push_small(value, hd, to.small_values, to.value_scales);
    } else {
      to.keys.insert(to.keys.end(), key, key + hd);
      to.values.insert(to.values.end(), value, value + hd);
    }
    float square;
    primitives::dot_rows(values.data() + i * hd, values.data() + i * hd, hd, 1, hd, &square);
    norms += std::sqrt(double{square});
  }
  const double mean_norm = norms / static_cast<double>(n);
  for (size_t c = 0; c + 1 < groups.begins.size(); ++c) {
    const int64_t begin = groups.begins[c], count = groups.begins[c + 1] - begin;
    const float spread = deviate(members.data() + begin * hd, count, hd, mean.data());
    push_rounded(mean.data(), hd, to.mean_keys);
    const float distance = deviate(values.data() + begin * hd, count, hd, mean.data());
    push_rounded(mean.data(), hd, to.mean_values);
    to.begins.push_back(static_cast<int64_t>(to.keys.size() + to.small_keys.size()) / hd - n +
                        begin);
    to.counts.push_back(static_cast<float>(count));
    to.log_counts.push_back(std::log(static_cast<float>(count)));
    to.deviations.push_back(std::sqrt(spread / static_cast<float>(hd)));
    to.rhos.push_back(mean_norm > 0 ? static_cast<float>(std::sqrt(double{distance}) / mean_norm)
                                    : 0.0f);
  }
}

}  // namespace

template <typename T>
void Settled<T>::reserve(const RefineSpec& spec) {
  const auto n = static_cast<size_t>(spec.capacity * spec.head_dim);
  if (spec.members == CacheKind::kInt8) {
    small_keys.reserve(n);
    small_values.reserve(n);
  } else {
    keys.reserve(n);
    values.reserve(n);
  }
  mean_keys.reserve(n / static_cast<size_t>(spec.page));
  mean_values.reserve(n / static_cast<size_t>(spec.page));
}

template <typename T>
void Settled<T>::append(const Settled& next) {
  const auto n_clusters = static_cast<int64_t>(begins.size());
  const int64_t n_rows = n_clusters == 0 ? 0 : begins.back() + static_cast<int64_t>(counts.back());
  for (const int64_t begin : next.begins) begins.push_back(n_rows + begin);
  for (const int64_t end : next.ends) ends.push_back(n_clusters + end);
  join(keys, next.keys);
  join(values, next.values);
  join(small_keys, next.small_keys);
  join(small_values, next.small_values);
  join(key_scales, next.key_scales);
  join(value_scales, next.value_scales);
  join(mean_keys, next.mean_keys);
  join(mean_values, next.mean_values);
  join(counts, next.counts);
  join(log_counts, next.log_counts);
  join(deviations, next.deviations);
  join(rhos, next.rhos);
}

template <typename T>
void Settled<T>::truncate(int64_t n, int64_t n_tokens, HeadKind kind, const RefineSpec& spec) {
  const auto n_clusters = static_cast<size_t>(clusters_of(n));
  const auto hd = static_cast<size_t>(spec.head_dim);
  const int64_t n_sinks = std::min(spec.sinks, n_tokens);
  const int64_t n_members = kind == HeadKind::kWindow ? 0 : n_tokens - n_sinks;
  const bool small = kind == HeadKind::kClusters && spec.members == CacheKind::kInt8;
  const auto n_rows = static_cast<size_t>(n_sinks + (small ? 0 : n_members));
  const auto n_small = static_cast<size_t>(small ? n_members : 0);
  for (auto* rows : {&keys, &values}) rows->resize(n_rows * hd);
  for (auto* rows : {&small_keys, &small_values}) rows->resize(n_small * hd);
  for (auto* scales : {&key_scales, &value_scales}) scales->resize(n_small);
  for (auto* rows : {&mean_keys, &mean_values}) rows->resize(n_clusters * hd);
  begins.resize(n_clusters);
  for (auto* of_clusters : {&counts, &log_counts, &deviations, &rhos})
    of_clusters->resize(n_clusters);
  ends.resize(static_cast<size_t>(n));
}

template <typename T>
typename Settled<T>::Rows Settled<T>::rows(int64_t row, int64_t n, int64_t head_dim, T* to) const {
  const auto n_exact = static_cast<int64_t>(keys.size()) / head_dim;
  if (row < n_exact) return {keys.data() + row * head_dim, values.data() + row * head_dim};
  const int64_t first = row - n_exact;
  expand(small_keys.data() + first * head_dim, key_scales.data() + first, n, head_dim, to);
  expand(small_values.data() + first * head_dim, value_scales.data() + first, n, head_dim,
         to + n * head_dim);
  return {to, to + n * head_dim};
}

template <typename T>
int64_t Settled<T>::bytes() const {
  return size_of(small_keys) + size_of(small_values) + size_of(key_scales) + size_of(value_scales) +
         size_of(keys) + size_of(values) + size_of(mean_keys) + size_of(mean_values) +
         size_of(begins) + size_of(counts) + size_of(log_counts) + size_of(deviations) +
         size_of(rhos) + size_of(ends);
}

template <typename T>
Settled<T> settle_part(const RefineSpec& spec, HeadKind kind,
                       const attention::HeadTokens<T>& tokens, int64_t begin, int64_t end) {
  Settled<T> to;
  const int64_t hd = spec.head_dim;
  const int64_t sinks_end = begin == 0 ? spec.sinks : begin;
  for (int64_t t = begin; t < (kind == HeadKind::kDense ? end : sinks_end); ++t) {
    to.keys.insert(to.keys.end(), tokens.key(t), tokens.key(t) + hd);
    to.values.insert(to.values.end(), tokens.value(t), tokens.value(t) + hd);
  }
  if (kind == HeadKind::kClusters) add_clusters(spec, tokens, sinks_end, end, to);
  to.ends.push_back(static_cast<int64_t>(to.begins.size()));
  return to;
}

template struct Settled<float>;
template struct Settled<BFloat16>;
template Settled<float> settle_part(const RefineSpec&, HeadKind,
                                    const attention::HeadTokens<float>&, int64_t, int64_t);
template Settled<BFloat16> settle_part(const RefineSpec&, HeadKind,
                                       const attention::HeadTokens<BFloat16>&, int64_t, int64_t);

}  // namespace sluice::impl::cpu::refine
