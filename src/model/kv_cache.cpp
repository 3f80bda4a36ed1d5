#include "model/kv_cache.h"

namespace sluice {

KvCache::KvCache(const ModelSpec& spec, Backend& backend, int64_t n_batch, int64_t capacity)
    : n_batch_(n_batch),
      capacity_(capacity),
      bytes_(bytes_needed(spec, backend.compute_dtype(), n_batch, capacity)) {
  const Shape shape = {n_batch, spec.n_kv_heads, capacity, spec.head_dim};
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    keys_.push_back(backend.allocate(backend.compute_dtype(), shape));
    values_.push_back(backend.allocate(backend.compute_dtype(), shape));
  }
}

void KvCache::advance(int64_t n_tokens) {
  SLUICE_CHECK(n_tokens >= 0 && length_ + n_tokens <= capacity_);
  length_ += n_tokens;
}

void KvCache::truncate(int64_t length) {
  SLUICE_CHECK(length >= 0 && length <= length_);
  length_ = length;
}

int64_t KvCache::bytes_needed(const ModelSpec& spec, DType dtype, int64_t n_batch,
                              int64_t capacity) {
  const int64_t per_layer = checked_mul(checked_mul(n_batch, capacity), spec.kv_width());
  return checked_mul(checked_mul(per_layer, 2 * element_bytes(dtype)), spec.n_layers);
}

KvView KvCache::layer(int64_t index) const {
  return {keys_[static_cast<size_t>(index)].view(), values_[static_cast<size_t>(index)].view()};
}

}  // namespace sluice
