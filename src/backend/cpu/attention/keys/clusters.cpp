#include "backend/cpu/attention/keys/clusters.h"

#include "backend/cpu/primitives/rows.h"

namespace sluice::impl::cpu::keys {
namespace {

// Row j of (…, n), grown by rows of zeros where it is a new one. Growth is by an eighth: this is a
// cache that is to be small.
template <typename T>
T* row_at(std::vector<T>& rows, int64_t j, int64_t n) {
  const auto end = static_cast<size_t>((j + 1) * n);
  if (rows.capacity() < end) rows.reserve(end + end / 8);
  if (rows.size() < end) rows.resize(end);
  return rows.data() + j * n;
}

void add_to(const float* from, int64_t n, float* to) { primitives::add(from, n, to); }
void add_to(const BFloat16* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] += to_float(from[i]);
}

void round_row(const float* from, float factor, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i] * factor;
}
void round_row(const float* from, float factor, int64_t n, BFloat16* to) {
  float row[64];
  for (int64_t begin = 0; begin < n; begin += 64) {
    const int64_t width = std::min<int64_t>(64, n - begin);
    for (int64_t i = 0; i < width; ++i) row[i] = from[begin + i] * factor;
    primitives::narrow(row, width, to + begin);
  }
}

template <typename T>
int64_t bytes_of(const std::vector<T>& rows) {
  return static_cast<int64_t>(rows.size() * sizeof(T));
}

}  // namespace

template <typename T>
FarKeys<T>::FarKeys(const HeadKeys& head, int64_t head_dim)
    : kind_(head.kind),
      far_(head.kind == HeadKind::kClusters ? head.far : FarKey::kOwn),
      head_dim_(head_dim) {}

template <typename T>
int64_t FarKeys<T>::reserve(const TokenSet* set, int64_t end) {
  if (kind_ == HeadKind::kWindow) return size();
  const int64_t n = kind_ == HeadKind::kClusters ? set->n_clusters : end;
  const auto elements = static_cast<size_t>(n * head_dim_);
  counts_.reserve(static_cast<size_t>(n));
  if (mean_keys())
    key_sums_.reserve(elements);
  else
    own_keys_.reserve(elements);
  if (mean_values())
    value_sums_.reserve(elements);
  else
    own_values_.reserve(elements);
  return n;
}

template <typename T>
int64_t FarKeys<T>::number_of(const TokenSet* set, int64_t t) const {
  const auto at = static_cast<size_t>(t);
  switch (kind_) {
    case HeadKind::kClusters:
      return set->cluster[at];
    case HeadKind::kWindow:
      return set->status[at] == TokenStatus::kExempt ? size() : -1;
    case HeadKind::kDense:
      return size();
  }
  return -1;
}

template <typename T>
int64_t FarKeys<T>::add(const TokenSet* set, int64_t t, const T* key, const T* value) {
  const int64_t j = number_of(set, t);
  if (j < 0) return j;
  *row_at(counts_, j, 1) += 1;
  // Owners may come after their members where the set is not causal.
  const bool own = kind_ != HeadKind::kClusters ||
                   set->status[static_cast<size_t>(t)] != TokenStatus::kRedundant;
  if (mean_keys())
    add_to(key, head_dim_, row_at(key_sums_, j, head_dim_));
  else if (own)
    std::copy_n(key, head_dim_, row_at(own_keys_, j, head_dim_));
  if (mean_values())
    add_to(value, head_dim_, row_at(value_sums_, j, head_dim_));
  else if (own)
    std::copy_n(value, head_dim_, row_at(own_values_, j, head_dim_));
  return j;
}

template <typename T>
int64_t FarKeys<T>::bytes() const {
  return bytes_of(counts_) + bytes_of(key_sums_) + bytes_of(value_sums_) + bytes_of(own_keys_) +
         bytes_of(own_values_);
}

template <typename T>
void FarKeys<T>::read(int64_t j, T* key, T* value) const {
  const float share = 1.0f / counts_[static_cast<size_t>(j)];
  const int64_t at = j * head_dim_;
  if (mean_keys())
    round_row(key_sums_.data() + at, share, head_dim_, key);
  else
    std::copy_n(own_keys_.data() + at, head_dim_, key);
  if (mean_values())
    round_row(value_sums_.data() + at, share, head_dim_, value);
  else
    std::copy_n(own_values_.data() + at, head_dim_, value);
}

template <typename T>
void FarKeys<T>::dot(const float* query, float* scores) const {
  if (!mean_keys())
    return primitives::dot_rows(query, own_keys_.data(), head_dim_, size(), head_dim_, scores);
  primitives::dot_rows(query, key_sums_.data(), head_dim_, size(), head_dim_, scores);
  for (int64_t j = 0; j < size(); ++j) scores[j] /= counts()[j];
}

template <typename T>
void FarKeys<T>::mix(float* weights, float* sums) const {
  if (!mean_values())
    return primitives::mix_rows(weights, own_values_.data(), head_dim_, size(), head_dim_, sums);
  for (int64_t j = 0; j < size(); ++j) weights[j] /= counts()[j];
  primitives::mix_rows(weights, value_sums_.data(), head_dim_, size(), head_dim_, sums);
}

template <typename T>
FarPanels<T>::FarPanels(const attention::TileShape& shape, int64_t n_expected) : shape_(shape) {
  const int64_t n_blocks = shape.blocks(n_expected);
  keys_.reserve(static_cast<size_t>(n_blocks * shape.key_bytes));
  values_.reserve(static_cast<size_t>(n_blocks * shape.value_bytes));
}

template <typename T>
void FarPanels<T>::touch(int64_t j) {
  if (j < 0) return;
  if (j >= size_) {
    size_ = j + 1;
    is_touched_.resize(static_cast<size_t>(size_));
  }
  if (is_touched_[static_cast<size_t>(j)]) return;
  is_touched_[static_cast<size_t>(j)] = true;
  touched_.push_back(j);
}

template <typename T>
void FarPanels<T>::update(const FarKeys<T>& keys) {
  const int64_t n_blocks = shape_.blocks(size_);
  keys_.resize(static_cast<size_t>(n_blocks * shape_.key_bytes));
  values_.resize(static_cast<size_t>(n_blocks * shape_.value_bytes));
  counts_.resize(static_cast<size_t>(n_blocks * shape_.block_keys));
  std::vector<T> key(static_cast<size_t>(shape_.head_dim)), value(key.size());
  for (const int64_t j : touched_) {
    keys.read(j, key.data(), value.data());
    attention::put_row(shape_, panels(), j, key.data(), value.data());
    counts_[static_cast<size_t>(j)] = keys.counts()[j];
    is_touched_[static_cast<size_t>(j)] = false;
  }
  touched_.clear();
}

template <typename T>
void FarPanels<T>::visit(attention::QueryTile& tile) {
  for (int64_t block = 0; block < shape_.blocks(size_); ++block) {
    const int64_t first = block * shape_.block_keys;
    tile.visit(panels().from(shape_, block), {.n_keys = shape_.block_keys, .end = size_ - first},
               [&](int64_t) { return counts_.data() + first; });
  }
}

template class FarKeys<float>;
template class FarKeys<BFloat16>;
template class FarPanels<float>;
template class FarPanels<BFloat16>;

}  // namespace sluice::impl::cpu::keys
