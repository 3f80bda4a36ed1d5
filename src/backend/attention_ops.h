// Attention: exact over a cache of all keys, and the objects that serve one layer of one sequence
// in the other modes.

#pragma once

#include <memory>

#include "backend/attend.h"
#include "backend/baseline.h"
#include "backend/core_ops.h"
#include "backend/refine.h"

namespace sluice::impl {

// Keys and values of one layer, of every sequence of the batch.
struct KvView {
  Tensor keys;    // (n_batch, n_kv_heads, capacity, head_dim), the compute dtype or int8
  Tensor values;  // (n_batch, n_kv_heads, capacity, head_dim)
  // Of int8 rows: (n_batch, n_kv_heads, capacity) f32. What attention sees of a row is its numbers
  // times its scale, those of the pass at hand included.
  Tensor key_scales = {}, value_scales = {};

  bool is_int8() const { return keys.dtype() == DType::kI8; }
};

struct StoreKvArgs {
  ConstTensor keys;    // (n_rows, n_kv_heads, head_dim)
  ConstTensor values;  // (n_rows, n_kv_heads, head_dim)
  int64_t n_tokens;
  int64_t first_position;
  KvView cache;
};

// Exact attention of n_tokens queries per sequence at positions first_position … over the keys
// before and at them (causal), or over all first_position + n_tokens keys.
struct AttendDenseArgs {
  ConstTensor queries;  // (n_rows, n_heads, head_dim)
  KvView cache;
  int64_t n_tokens;
  int64_t first_position;
  bool causal;
  int64_t window = 0;  // > 0: a query sees the last `window` positions only, its own included
  float scale;
  float cap = 0;  // > 0: a scaled score s becomes cap * tanh(s / cap)
  Tensor out;     // (n_rows, n_heads, head_dim)

  // The cap of a score before it is scaled: scale * (c * tanh(s / c)) of it is the capped score.
  float unscaled_cap() const { return cap / scale; }
};

struct AttendRaggedArgs;  // ragged.h

class AttentionOps {
 public:
  virtual ~AttentionOps() = default;
  // Throws Error for heads that attention here does not take, for whoever is about to load a model;
  // group: query heads of a key head.
  virtual void check_heads(int64_t /*head_dim*/, int64_t /*group*/) const {}

  // Throws Error for a kind of cache that dense attention here does not have.
  virtual void check_cache(CacheKind /*kind*/) const {}

  virtual void store_kv(const StoreKvArgs& args) = 0;
  virtual void attend_dense(const AttendDenseArgs& args) = 0;
  // Rotation of queries and keys (unless rotary is null), store_kv() and attend_dense(), in that
  // order. `rotary` speaks of queries and keys together. Where they lie they may stay unrotated. A
  // single token may be stored without a pass over the others: the keys before it are those of
  // earlier passes, which began with embed().
  virtual void store_and_attend(const RotaryArgs* rotary, const StoreKvArgs& store,
                                const AttendDenseArgs& attend) = 0;
  // store_kv() and attend_dense() of every sequence of a ragged batch.
  virtual void attend_ragged(const AttendRaggedArgs& args) = 0;

  virtual std::unique_ptr<KeysAttention> make_keys_attention(const KeysSpec& spec) = 0;
  virtual std::unique_ptr<RepsAttention> make_reps_attention(const RepsSpec& spec) = 0;
  // Throws Error for sizes that this backend does not take.
  virtual std::unique_ptr<RefineAttention> make_refine_attention(const RefineSpec& spec) = 0;
  // Throws Error where there are none.
  virtual std::unique_ptr<BaselineAttention> make_baseline_attention(const BaselineSpec& spec) = 0;
};

}  // namespace sluice::impl
