// Baselines that refined attention is compared with: the seam's types. docs/baselines.md.
//
// A query reads some keys exactly and drops the rest. A BaselineAttention belongs to one layer of
// one sequence and keeps all keys and values: it measures what a method loses, not its time.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "backend/refine.h"

namespace sluice::impl {

// How keys are chosen. Every query head chooses for itself.
enum class BaselineKind : uint8_t {
  kWindow,  // first and last keys
  kQuest,   // pages by an upper bound of their scores
  kPooled,  // blocks by the scores of mean queries and mean keys
  kOracle,  // blocks by their true mass
};

inline constexpr int64_t kBaselineSinks = 4;   // first keys that a window head reads too
inline constexpr int64_t kBaselinePage = 16;   // tokens of a page of kQuest
inline constexpr int64_t kBaselineBlock = 64;  // queries and keys of a block

struct BaselineSpec {
  int64_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
  DType dtype = DType::kF32;
  float scale = 1;
  int64_t capacity = 0;  // tokens that a sequence may have
  BaselineKind kind = BaselineKind::kWindow;
  double keep = 1;      // in (0, 1]: share of the context, of its pages, or of the mass
  int64_t context = 0;  // tokens that kWindow and kQuest take a share of
};

// Last keys that a query of kWindow reads.
inline int64_t baseline_window(double keep, int64_t context) {
  return std::max<int64_t>(1, std::llround(keep * static_cast<double>(context)));
}
// Pages that a query of kQuest reads, the first and its own among them.
inline int64_t baseline_pages(double keep, int64_t context) {
  const int64_t all = whole_pages(context, kBaselinePage) / kBaselinePage;
  return std::max<int64_t>(2, std::llround(keep * static_cast<double>(all)));
}

using AttendBaselineArgs = AttendRefineArgs;

class BaselineAttention {
 public:
  virtual ~BaselineAttention() = default;
  // Takes in the tokens that follow and answers their queries; causal. A pass begins anywhere. Of
  // kPooled and kOracle, the queries of [i * kBaselineBlock, (i + 1) * kBaselineBlock) in one pass
  // choose together, on the keys so far with those of the pass.
  virtual void attend(const AttendBaselineArgs& args) = 0;
  virtual void reset() = 0;
  virtual CacheBytes bytes() const = 0;
  // Keys that all queries of all heads read since reset(), with what kQuest reads to choose.
  virtual int64_t keys_read() const = 0;
};

}  // namespace sluice::impl
