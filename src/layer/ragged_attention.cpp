// The attention half of a block for a ragged batch: products over all rows, attention of each
// sequence by itself.

#include <algorithm>

#include "layer/parts.h"

namespace sluice::impl {
namespace {

// The rows of each part by themselves: modes `copy` and `paper`, which project fewer rows.
void run_each(Backend& backend, const BlockShape& shape, const BlockWeights& weights,
              const BlockInput& input, Workspace& workspace) {
  const int64_t n_rows = workspace.residual().rows();
  for (const SequencePart& part : input.parts) {
    workspace.show(part.first_row, part.n_tokens);
    run_attention(backend, shape, weights, input.of(part), workspace);
  }
  workspace.show(0, n_rows);
}

void select_parts(const BlockInput& input, Workspace& workspace) {
  const int64_t n_rows = workspace.residual().rows();
  for (const SequencePart& part : input.parts) {
    if (part.accelerated == nullptr) continue;
    workspace.show(part.first_row, part.n_tokens);
    select_tokens(input.of(part), workspace);
  }
  workspace.show(0, n_rows);
}

}  // namespace

void run_ragged_attention(Backend& backend, const BlockShape& shape, const BlockWeights& weights,
                          const BlockInput& input, Workspace& workspace) {
  if (std::any_of(input.parts.begin(), input.parts.end(), [](const SequencePart& part) {
        return part.accelerated != nullptr && !part.accelerated->attends_every_query();
      }))
    return run_each(backend, shape, weights, input, workspace);
  select_parts(input, workspace);
  const Projections heads =
      project(backend, shape, weights, input, workspace.input(), workspace.qkv());
  const Tensor attended = workspace.attended();
  const Tensor out = heads_of(attended, 0, shape.n_heads, shape.head_dim);
  {
    const TimedScope timed = input.time(&LayerTimes::attend);
    if (const auto rotary = rotary_of(shape, weights, input, input.positions, workspace.qkv()))
      backend.rotate(*rotary);
    std::vector<RaggedSequence> dense;
    for (const SequencePart& part : input.parts) {
      if (part.accelerated == nullptr) {
        dense.push_back({.cache = part.cache,
                         .first_row = part.first_row,
                         .n_tokens = part.n_tokens,
                         .first_position = part.first_position});
        continue;
      }
      const auto rows = [&](const Tensor& all) {
        return all.rows_from(part.first_row, part.n_tokens);
      };
      attend_sequence(*part.accelerated, 0, input.exact,
                      {.queries = rows(heads.queries),
                       .keys = rows(heads.keys),
                       .values = rows(heads.values),
                       .out = rows(out)});
    }
    if (!dense.empty())
      backend.attend_ragged({.attend = {.queries = heads.queries,
                                        .cache = {},
                                        .n_tokens = 0,
                                        .first_position = 0,
                                        .causal = shape.causal,
                                        .window = weights.window,
                                        .scale = weights.scale,
                                        .cap = shape.attention_cap,
                                        .out = out},
                             .keys = heads.keys,
                             .values = heads.values,
                             .sequences = dense});
  }
  run_output(
      backend, input,
      {BasisInput::kAttentionOutput, weights.attention_out, weights.attention_post_norm, attended},
      workspace);
}

}  // namespace sluice::impl
