#include "backend/cpu/attention/refine/settled.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

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

// mean (dim) of n rows of (n, dim), and squares (dim): the mean of their squared deviations from
// it.
void deviate(const float* rows, int64_t n, int64_t dim, float* mean, float* squares) {
  mean_rows(rows, n, dim, mean);
  std::fill(squares, squares + dim, 0.0f);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t d = 0; d < dim; ++d) {
      const float deviation = rows[i * dim + d] - mean[d];
      squares[d] += deviation * deviation;
    }
  primitives::scale(1 / static_cast<float>(n), dim, squares);
}

// Keys of tokens [first, end), widened.
template <typename T>
std::vector<float> keys_of(const RefineSpec& spec, const attention::HeadTokens<T>& tokens,
                           int64_t first, int64_t end) {
  const int64_t hd = spec.head_dim;
  std::vector<float> keys(static_cast<size_t>((end - first) * hd));
  for (int64_t t = first; t < end; ++t)
    widen_row(tokens.key(t), hd, keys.data() + (t - first) * hd);
  return keys;
}

void push_spreads(const std::vector<float>& squares, const DimGroups& dims, Spreads& to) {
  for (int g = 0; g < kSpreadGroups; ++g) {
    float sum = 0;
    dims.each(g, [&](int32_t d) { sum += squares[static_cast<size_t>(d)]; });
    const float spread = dims.size(g) > 0 ? sum / static_cast<float>(dims.size(g)) : 0.0f;
    to[static_cast<size_t>(g)].push_back(to_float(to_bfloat16(spread)));
  }
}

// Clusters of tokens [first, end), appended to `to`.
template <typename T>
void add_clusters(const RefineSpec& spec, const SettleFrom<T>& head, int64_t first, int64_t end,
                  Settled<T>& to) {
  const int64_t n = end - first, hd = spec.head_dim;
  const std::vector<float> keys = keys_of(spec, head.tokens, first, end);
  std::vector<float> members(keys.size()), values(keys.size());
  std::vector<float> mean(static_cast<size_t>(hd)), squares(mean.size());
  const std::vector<int32_t> order = cluster_keys(keys.data(), n, hd, spec.page);
  double norms = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = order[static_cast<size_t>(i)];
    std::memcpy(members.data() + i * hd, keys.data() + row * hd,
                static_cast<size_t>(hd) * sizeof(float));
    const T *key = head.tokens.key(first + row), *value = head.tokens.value(first + row);
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
  for (int64_t begin = 0; begin < n; begin += spec.page) {
    deviate(members.data() + begin * hd, spec.page, hd, mean.data(), squares.data());
    push_rounded(mean.data(), hd, to.mean_keys);
    push_spreads(squares, head.dims, to.spreads);
    deviate(values.data() + begin * hd, spec.page, hd, mean.data(), squares.data());
    push_rounded(mean.data(), hd, to.mean_values);
    const double distance = std::accumulate(squares.begin(), squares.end(), 0.0);
    to.rhos.push_back(mean_norm > 0 ? static_cast<float>(std::sqrt(distance) / mean_norm) : 0.0f);
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
  const int64_t n = n_clusters();
  for (const int64_t end : next.ends) ends.push_back(n + end);
  join(keys, next.keys);
  join(values, next.values);
  join(small_keys, next.small_keys);
  join(small_values, next.small_values);
  join(key_scales, next.key_scales);
  join(value_scales, next.value_scales);
  join(mean_keys, next.mean_keys);
  join(mean_values, next.mean_values);
  for (size_t g = 0; g < spreads.size(); ++g) join(spreads[g], next.spreads[g]);
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
  for (std::vector<float>& row : spreads) row.resize(n_clusters);
  rhos.resize(n_clusters);
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
         kSpreadGroups * size_of(spreads[0]) + size_of(rhos) + size_of(ends);
}

template <typename T>
Settled<T> settle_part(const RefineSpec& spec, const SettleFrom<T>& head, int64_t begin,
                       int64_t end) {
  Settled<T> to;
  const int64_t hd = spec.head_dim;
  const int64_t sinks_end = begin == 0 ? spec.sinks : begin;
  for (int64_t t = begin; t < (head.kind == HeadKind::kDense ? end : sinks_end); ++t) {
    const T *key = head.tokens.key(t), *value = head.tokens.value(t);
    to.keys.insert(to.keys.end(), key, key + hd);
    to.values.insert(to.values.end(), value, value + hd);
  }
  if (head.kind == HeadKind::kClusters) add_clusters(spec, head, sinks_end, end, to);
  to.ends.push_back(to.n_clusters());
  return to;
}

template <typename T>
DimGroups dim_groups_of(const RefineSpec& spec, const attention::HeadTokens<T>& tokens) {
  const int64_t hd = spec.head_dim, n = spec.segment - spec.sinks;
  const std::vector<float> keys = keys_of(spec, tokens, spec.sinks, spec.segment);
  const std::vector<int32_t> order = cluster_keys(keys.data(), n, hd, spec.page);
  std::vector<float> page(static_cast<size_t>(spec.page * hd));
  std::vector<double> deviations(static_cast<size_t>(hd));
  for (int64_t begin = 0; begin < n; begin += spec.page) {
    for (int64_t i = 0; i < spec.page; ++i)
      std::copy_n(keys.begin() + order[static_cast<size_t>(begin + i)] * hd, hd,
                  page.begin() + i * hd);
    const std::vector<double> of_page = variances_of(page.data(), spec.page, hd);
    for (size_t d = 0; d < deviations.size(); ++d) deviations[d] += of_page[d];
  }
  return group_dims(deviations);
}

template struct Settled<float>;
template struct Settled<BFloat16>;
template Settled<float> settle_part(const RefineSpec&, const SettleFrom<float>&, int64_t, int64_t);
template Settled<BFloat16> settle_part(const RefineSpec&, const SettleFrom<BFloat16>&, int64_t,
                                       int64_t);
template DimGroups dim_groups_of(const RefineSpec&, const attention::HeadTokens<float>&);
template DimGroups dim_groups_of(const RefineSpec&, const attention::HeadTokens<BFloat16>&);

}  // namespace sluice::impl::cpu::refine
