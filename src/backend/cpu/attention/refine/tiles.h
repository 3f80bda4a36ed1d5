// Refined attention of a pass: tiles of queries over near keys, means and opened members.
// docs/algorithm.md, section 7.
//
// Near keys give each query its part of the normaliser, scores of the means give the rest and the
// estimates. Members of what a tile opens are gathered into a block of packed keys, so that the
// matrix kernels see nothing else.

#pragma once

#include "backend/cpu/attention/refine/settled.h"
#include "backend/cpu/attention/refine/tile_plan.h"

namespace sluice::impl::cpu::refine {

// What the queries of a key/value head read in a pass.
template <typename T>
struct HeadView {
  HeadKind kind;
  float delta;
  const attention::HeadTokens<T>* tokens;
  const Settled<T>* settled;
  const DimGroups* dims;
  attention::Panels means;  // packed means of all clusters
};

// Queries at positions [first, end) of one key/value head, which share a border.
struct QueryRun {
  int64_t first, end;
  int64_t border;       // tokens before it are settled
  int64_t n_parts;      // of what is settled, up to the border
  int64_t first_token;  // of the pass
  int64_t n_tokens;     // with the pass
  int64_t kv_head;
};

// opened: (n_segments, n_heads), which other threads add to as well.
template <typename T>
void attend_run(const RefineSpec& spec, const TilePlan& plan, const AttendRefineArgs& args,
                const HeadView<T>& head, const QueryRun& run, int64_t* opened);

}  // namespace sluice::impl::cpu::refine
