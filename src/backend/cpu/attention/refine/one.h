// Refined attention of one query: row by row. docs/algorithm.md, section 7.

#pragma once

#include "backend/cpu/attention/refine/settled.h"

namespace sluice::impl::cpu::refine {

// The query of one query head at position t, and what its key/value head has. The tokens from
// `border` on lie side by side.
template <typename T>
struct OneQuery {
  HeadKind kind;
  float delta;
  const attention::HeadTokens<T>* tokens;
  const Settled<T>* settled;
  const DimGroups* dims;
  const T* query;  // (head_dim)
  int64_t border, n_tokens;
  int64_t n_parts;  // of `settled` that it sees
  T* out;           // (head_dim)
};

// Returns the members of opened clusters.
template <typename T>
int64_t attend_one(const RefineSpec& spec, const OneQuery<T>& q);

}  // namespace sluice::impl::cpu::refine
