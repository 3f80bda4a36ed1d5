// Queries of one position that share a key/value head, over rows of keys and values as they are
// cached: each row is read once for all of them. Online softmax, block by block.

#pragma once

#include <vector>

#include "backend/cpu/primitives/group_rows.h"
#include "backend/cpu/primitives/score_rows.h"

namespace sluice::impl::cpu::attention {

template <typename T>
class QueryGroup {
 public:
  // queries: (n_queries, head_dim). cap: of scores before they are scaled, 0 for none. What an
  // earlier group left is forgotten.
  void load(const T* queries, int64_t n_queries, int64_t head_dim, float scale, float cap);
  // Attends to n more keys; keys and values are (n, head_dim).
  void visit(const T* keys, const T* values, int64_t n);
  // What was summed so far, to be added to another group of the same queries.
  int64_t part_size() const { return n_queries_ * (2 + head_dim_); }
  void save(float* part) const;
  void add(const float* part);
  // out: (n_queries, head_dim).
  void store(T* out);

 private:
  static constexpr int64_t kBlock = 128;  // keys and values of a block stay in the L1 cache

  void soften(int64_t n);
  float* sums_of(int64_t query) { return sums_.data() + query * head_dim_; }

  int64_t n_queries_ = 0, head_dim_ = 0;
  float scale_ = 1, cap_ = 0;
  const primitives::NativeGroup* native_ = nullptr;
  std::vector<float> queries_, scores_, sums_;
  std::vector<BFloat16> packed_, weights_;  // of the native kernels
  std::vector<primitives::SoftmaxState> states_;
};

}  // namespace sluice::impl::cpu::attention
