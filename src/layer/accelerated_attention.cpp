// The attention half of a block on representative tokens. Selection comes before the projections,
// so `copy` and `paper` never compute q, k, v or the output projection of a redundant row.

#include "core/error.h"
#include "layer/parts.h"

namespace sluice::impl {
namespace {

// Rows of the sequence `batch` in a tensor of the whole batch.
template <typename AnyTensor>
AnyTensor rows_of(const AnyTensor& rows, int64_t batch, int64_t n_tokens) {
  return rows.rows_from(batch * n_tokens, n_tokens);
}

// Every query attends: modes `keys`, `refine` and `baseline`.
void run_all_queries(Backend& backend, const BlockShape& shape, const BlockWeights& weights,
                     const BlockInput& input, Workspace& workspace) {
  const Projections heads =
      project(backend, shape, weights, input, workspace.input(), workspace.qkv());
  if (const auto rotary = rotary_of(shape, weights, input, {}, workspace.qkv())) {
    const TimedScope timed = input.time(&LayerTimes::attend);
    backend.rotate(*rotary);
  }
  const Tensor attended = workspace.attended();
  const Tensor out = heads_of(attended, 0, shape.n_heads, shape.head_dim);
  const int64_t n = input.n_tokens;
  for (int64_t batch = 0; batch < attended.rows() / n; ++batch) {
    const TimedScope timed = input.time(&LayerTimes::attend);
    attend_sequence(*input.accelerated, batch, input.exact,
                    {.queries = rows_of(heads.queries, batch, n),
                     .keys = rows_of(heads.keys, batch, n),
                     .values = rows_of(heads.values, batch, n),
                     .out = rows_of(out, batch, n)});
  }
  run_output(
      backend, input,
      {BasisInput::kAttentionOutput, weights.attention_out, weights.attention_post_norm, attended},
      workspace);
}

// One sequence of `copy` or `paper`, input.sequence.
void run_reps(Backend& backend, const BlockShape& shape, const BlockWeights& weights,
              const BlockInput& input, Workspace& workspace) {
  const int64_t batch = input.sequence;
  LayerAttention& layer = *input.accelerated;
  const TokenSet& set = layer.only_set(batch);
  std::vector<int32_t> rows, positions;  // of the tokens that stand for themselves
  for (int64_t i = 0; i < input.n_tokens; ++i) {
    const int64_t t = input.first_position + i;
    if (set.status[static_cast<size_t>(t)] == TokenStatus::kRedundant) continue;
    rows.push_back(static_cast<int32_t>(batch * input.n_tokens + i));
    positions.push_back(static_cast<int32_t>(t));
  }
  const auto n = static_cast<int64_t>(rows.size());
  const Tensor x = workspace.gathered(backend, n), qkv = workspace.qkv().rows_from(0, n);
  const Tensor attended = workspace.attended().rows_from(0, n);
  {
    const TimedScope timed = input.time(&LayerTimes::attend);
    backend.gather_rows(workspace.input(), rows, x);
  }
  const Projections heads = project(backend, shape, weights, input, x, qkv);
  {
    const TimedScope timed = input.time(&LayerTimes::attend);
    if (const auto rotary = rotary_of(shape, weights, input, positions, qkv))
      backend.rotate(*rotary);
    // Without queries too: the tokens of this pass count in later ones.
    layer.reps(batch).attend({.queries = heads.queries,
                              .keys = heads.keys,
                              .values = heads.values,
                              .set = &set,
                              .first_token = input.first_position,
                              .out = heads_of(attended, 0, shape.n_heads, shape.head_dim)});
  }
  if (n > 0) {
    const Tensor outputs = layer.add_outputs(batch, n);
    run_last_product(backend, input, BasisInput::kAttentionOutput, weights.attention_out,
                     {.weights = &weights.attention_out.dense(), .x = attended, .out = outputs});
    // What a later token copies is what was added to the residual stream.
    if (weights.attention_post_norm.exists)
      weights.attention_post_norm.run(backend, outputs, outputs);
  }
  const TimedScope timed = input.time(&LayerTimes::attend);
  backend.add_rows(layer.outputs(batch),
                   std::span(set.cluster).subspan(static_cast<size_t>(input.first_position)),
                   rows_of(workspace.residual(), batch, input.n_tokens));
}

}  // namespace

void attend_sequence(LayerAttention& layer, int64_t batch, bool exact,
                     const AttendRefineArgs& all) {
  if (layer.plan().mode == AttentionMode::kRefine) {
    RefineAttention& refine = layer.refine(batch);
    exact ? refine.attend_exact(all) : refine.attend(all);
  } else if (layer.plan().mode == AttentionMode::kBaseline) {
    layer.baseline(batch).attend(all);
  } else {
    layer.keys(batch).attend({.queries = all.queries,
                              .keys = all.keys,
                              .values = all.values,
                              .sets = layer.chooser(batch),
                              .out = all.out});
  }
}

void select_tokens(const BlockInput& input, Workspace& workspace) {
  LayerAttention& layer = *input.accelerated;
  const ConstTensor residual = workspace.residual(), squares = workspace.squares();
  const bool normed = layer.plan().space == SelectSpace::kNormed;
  const TokenRows tokens{.rows = normed ? ConstTensor(workspace.input()) : residual,
                         .residual = residual,
                         .row_squares = normed ? squares_of_out(squares) : squares_of_x(squares),
                         .residual_squares = squares_of_x(squares)};
  for (int64_t batch = 0; batch < residual.rows() / input.n_tokens; ++batch) {
    if (layer.n_tokens(batch) != input.first_position)
      throw Error("an earlier pass on this cache did not come to its end",
                  "truncate the cache to 0 tokens, or make another");
    if (input.exact) continue;
    const TimedScope timed = input.time(&LayerTimes::select);
    layer.select(batch, tokens.from(batch * input.n_tokens, input.n_tokens));
  }
}

void run_accelerated_attention(Backend& backend, const BlockShape& shape,
                               const BlockWeights& weights, const BlockInput& input,
                               Workspace& workspace) {
  const LayerAttention& layer = *input.accelerated;
  select_tokens(input, workspace);
  if (layer.attends_every_query())
    return run_all_queries(backend, shape, weights, input, workspace);
  BlockInput one = input;
  const int64_t n_batch = workspace.residual().rows() / input.n_tokens;
  for (one.sequence = 0; one.sequence < n_batch; ++one.sequence)
    run_reps(backend, shape, weights, one, workspace);
}

}  // namespace sluice::impl
