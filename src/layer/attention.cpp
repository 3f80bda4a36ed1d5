#include "layer/parts.h"

namespace sluice {

Tensor heads_of(const Tensor& rows, int64_t begin, int64_t n_heads, int64_t head_dim) {
  const Tensor columns = rows.columns_from(begin, n_heads * head_dim);
  return Tensor(columns.bytes(), columns.dtype(), {rows.rows(), n_heads, head_dim},
                columns.device())
      .with_row_stride(rows.row_stride());
}

Projections project(Backend& backend, const BlockShape& shape, const BlockWeights& weights,
                    const BlockInput& input, const ConstTensor& x,
                    std::span<const int32_t> positions, const Tensor& out) {
  if (x.rows() > 0)
    run_linear(backend, input, BasisInput::kAttentionInput,
               {.weights = &weights.qkv.dense(), .x = x, .out = out});
  const int64_t d = shape.head_dim;
  const Projections heads{
      heads_of(out, 0, shape.n_heads, d), heads_of(out, shape.n_heads * d, shape.n_kv_heads, d),
      heads_of(out, (shape.n_heads + shape.n_kv_heads) * d, shape.n_kv_heads, d)};
  if (shape.rotary && x.rows() > 0)  // queries and keys lie side by side
    backend.rotate({.style = shape.rotary_style,
                    .cosine = input.cosine,
                    .sine = input.sine,
                    .n_tokens = input.n_tokens,
                    .first_position = input.first_position,
                    .positions = positions,
                    .x = heads_of(out, 0, shape.n_heads + shape.n_kv_heads, d)});
  return heads;
}

void run_attention(Backend& backend, const BlockShape& shape, const BlockWeights& weights,
                   const BlockInput& input, Workspace& workspace) {
  if (input.accelerated != nullptr)
    return run_accelerated_attention(backend, shape, weights, input, workspace);
  input.linear_seen(BasisInput::kAttentionInput, workspace.input());
  const Projections heads =
      project(backend, shape, weights, input, workspace.input(), {}, workspace.qkv());
  const Tensor attended = workspace.attended();
  const Tensor out = heads_of(attended, 0, shape.n_heads, shape.head_dim);
  {
    const TimedScope timed = input.time(&LayerTimes::attend);
    backend.store_kv({.keys = heads.keys,
                      .values = heads.values,
                      .n_tokens = input.n_tokens,
                      .first_position = input.first_position,
                      .cache = input.cache});
    backend.attend_dense({.queries = heads.queries,
                          .cache = input.cache,
                          .n_tokens = input.n_tokens,
                          .first_position = input.first_position,
                          .causal = shape.causal,
                          .window = weights.window,
                          .scale = weights.scale,
                          .out = out});
  }
  if (input.observer != nullptr && *input.observer)
    (*input.observer)({.layer = input.layer,
                       .residual = workspace.residual(),
                       .input = workspace.input(),
                       .queries = heads.queries,
                       .keys = heads.keys,
                       .values = heads.values,
                       .attended = out});
  input.linear_seen(BasisInput::kAttentionOutput, attended);
  run_linear(backend, input, BasisInput::kAttentionOutput,
             {.weights = &weights.attention_out.dense(),
              .x = attended,
              .accumulate = true,
              .out = workspace.residual()});
}

}  // namespace sluice
