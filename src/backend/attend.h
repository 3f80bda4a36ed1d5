// Attention on representative tokens: the seam's types. docs/algorithm.md, section 3.
//
// Each object belongs to one layer of one sequence: it is its cache too.

#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "backend/select.h"

namespace sluice::impl {

// What stands for a cluster of far tokens.
enum class FarKey : uint8_t {
  kCentroid,  // means of the members' keys and values
  kValues,    // the representative's key, mean of the values
  kOwn,       // the representative's key and value
};

enum class HeadKind : uint8_t {
  kClusters,  // far keys are the clusters of a set
  kWindow,    // far keys are dropped, exempt ones excepted
  kDense,     // all keys are exact
};

// What one key/value head does; its query heads do the same.
struct HeadKeys {
  HeadKind kind = HeadKind::kClusters;
  FarKey far = FarKey::kCentroid;
  size_t set = 0;  // index into the selector's sets; kWindow reads exempt tokens from it
};

// F(t) of mode `keys`: where the near keys of the query at t begin.
inline int64_t near_border(int64_t t, int64_t window, int64_t block) {
  return block * (std::max<int64_t>(0, t - window) / block);
}

// Mode `keys`. Causal: the query at t sees keys from F(t) = block * floor(max(0, t - window) /
// block) on, and exempt ones, exactly; the rest as clusters with weight log(count), whose means
// and counts are those before F(t). Not causal: every query sees all clusters, one pass in all.
struct KeysSpec {
  int64_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
  DType dtype = DType::kF32;
  float scale = 1;
  bool causal = true;
  int64_t window = 128, block = 128;  // window is a multiple of block
  std::vector<HeadKeys> heads;        // (n_kv_heads)

  // F(t), of a causal model.
  int64_t border(int64_t t) const { return near_border(t, window, block); }
};

// The sets of a layer: in host memory, or those of the selector that chose them, which a device
// backend reads where they are.
class SetsOf {
 public:
  SetsOf(std::span<const TokenSet> sets) : sets_(sets) {}     // NOLINT: a plain value
  SetsOf(const std::vector<TokenSet>& sets) : sets_(sets) {}  // NOLINT
  SetsOf(const Selector& chooser) : chooser_(&chooser) {}     // NOLINT

  const Selector* chooser() const { return chooser_; }  // nullptr: host memory
  std::span<const TokenSet> host() const { return chooser_ != nullptr ? chooser_->sets() : sets_; }

 private:
  std::span<const TokenSet> sets_;
  const Selector* chooser_ = nullptr;
};

struct AttendKeysArgs {
  ConstTensor queries;  // (n_tokens, n_heads, head_dim)
  ConstTensor keys;     // (n_tokens, n_kv_heads, head_dim), after rotary embedding
  ConstTensor values;   // (n_tokens, n_kv_heads, head_dim)
  // Decided at least up to border(n), n being the tokens taken in after this pass; up to n when
  // not causal.
  SetsOf sets;
  Tensor out;  // (n_tokens, n_heads, head_dim)
  // (n_tokens, n_heads) f32, or nothing: the log of the sum of exp of a query's scores, with which
  // its answer can be joined to one over other keys.
  Tensor log_sums = {};
};

// What a compressed cache weighs: its contents, not the room they may grow into.
struct CacheBytes {
  int64_t exact = 0;     // recent keys and values
  int64_t clusters = 0;  // far keys: sums and counts, exempt tokens, all far tokens of dense heads
};

class KeysAttention {
 public:
  virtual ~KeysAttention() = default;
  // Takes in the tokens that follow and answers their queries.
  virtual void attend(const AttendKeysArgs& args) = 0;
  virtual void reset() = 0;
  virtual CacheBytes bytes() const = 0;
};

// Modes `copy` and `paper`: attention among the tokens that stand for themselves.
struct RepsSpec {
  int64_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
  DType dtype = DType::kF32;
  float scale = 1;
  bool causal = true;
  // Scores get log m_j(t), the members of cluster j up to t (all of them when not causal).
  bool multiplicity = true;
};

struct AttendRepsArgs {
  ConstTensor queries;  // (n_new, n_heads, head_dim): one row for each new token that is not
  ConstTensor keys;     // (n_new, n_kv_heads, head_dim)    kRedundant, in order
  ConstTensor values;   // (n_new, n_kv_heads, head_dim)
  const TokenSet* set;  // decided up to and including the tokens of this pass
  int64_t first_token;  // of this pass; its tokens end where the set ends
  Tensor out;           // (n_new, n_heads, head_dim)
};

class RepsAttention {
 public:
  virtual ~RepsAttention() = default;
  virtual void attend(const AttendRepsArgs& args) = 0;
  virtual void reset() = 0;
  virtual CacheBytes bytes() const = 0;
};

}  // namespace sluice::impl
