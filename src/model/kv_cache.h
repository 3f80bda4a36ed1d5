// Keys and values of every layer, for sequences that grow together.

#pragma once

#include <vector>

#include "backend/backend.h"
#include "model/spec.h"

namespace sluice {

class KvCache {
 public:
  KvCache(const ModelSpec& spec, Backend& backend, int64_t n_batch, int64_t capacity);

  int64_t n_batch() const { return n_batch_; }
  int64_t capacity() const { return capacity_; }
  int64_t length() const { return length_; }  // positions filled, the same in every sequence
  void advance(int64_t n_tokens);
  void truncate(int64_t length);  // forget positions from `length` on
  int64_t bytes() const { return bytes_; }
  static int64_t bytes_needed(const ModelSpec& spec, DType dtype, int64_t n_batch,
                              int64_t capacity);

  KvView layer(int64_t index) const;

 private:
  int64_t n_batch_, capacity_, length_ = 0, bytes_;
  std::vector<Buffer> keys_, values_;  // (n_batch, n_kv_heads, capacity, head_dim)
};

}  // namespace sluice
