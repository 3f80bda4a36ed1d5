// Queries of one position that share a key/value head, over rows of keys and values as they are
// cached: each row is read once for all of them. Online softmax, block by block.

#pragma once

#include <vector>

#include "backend/cpu/primitives/group_rows.h"
#include "backend/cpu/primitives/score_rows.h"

namespace sluice::impl::cpu::attention {

// Rows of int8, each with its scale: backend/cache_kind.h.
struct Int8Rows {
  const int8_t* rows;   // (n, head_dim)
  const float* scales;  // (n)
  Int8Rows from(int64_t row, int64_t head_dim) const {
    return {rows + row * head_dim, scales + row};
  }
};

// Weights as NativeGroup::mix takes them: in bf16, with zeros behind them. There is room for a
// multiple of NativeGroup::kRows.
void narrow_weights(const float* scores, int64_t n, BFloat16* weights);

struct GroupShape {
  int64_t n_queries, head_dim;
  float scale;
  float cap = 0;      // of scores before they are scaled, 0 for none
  bool int8 = false;  // rows are; otherwise they have the dtype of the queries
};

template <typename T>
class QueryGroup {
 public:
  // queries: (n_queries, head_dim). What an earlier group left is forgotten.
  void load(const T* queries, const GroupShape& shape);
  // Attends to n more keys; keys and values are (n, head_dim).
  void visit(const T* keys, const T* values, int64_t n);
  void visit(const Int8Rows& keys, const Int8Rows& values, int64_t n);
  // What was summed so far, to be added to another group of the same queries.
  static int64_t part_size(int64_t n_queries, int64_t head_dim) {
    return n_queries * (2 + head_dim);
  }
  void save(float* part) const;
  void add(const float* part);
  // out: (n_queries, head_dim).
  void store(T* out);

 private:
  static constexpr int64_t kBlock = 128;  // keys and values of a block stay in the L1 cache
  static_assert(kBlock <= primitives::NativeInt8Group::kMostRows);

  // Scores of a block of keys, weights of them, and the sums of their values.
  void dot(const primitives::GroupRows<T>& keys);
  void soften(int64_t n);
  void mix(const primitives::GroupRows<T>& values);
  float* sums_of(int64_t query) { return sums_.data() + query * shape_.head_dim; }

  // Makes queries ready for the kernels that fit the shape.
  void pack(const T* queries);

  GroupShape shape_{};
  const primitives::NativeGroup* native_ = nullptr;
  const primitives::NativeInt8Group* native_int8_ = nullptr;
  std::vector<float> queries_, scores_, sums_;
  std::vector<BFloat16> packed_, weights_;  // of the native kernels
  std::vector<int8_t> terms_;               // of those for int8, with query_scales_
  std::vector<float> query_scales_;
  std::vector<primitives::SoftmaxState> states_;
};

}  // namespace sluice::impl::cpu::attention
