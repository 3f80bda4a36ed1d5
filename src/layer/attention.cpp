#include "layer/parts.h"

namespace sluice::impl {

Tensor heads_of(const Tensor& rows, int64_t begin, int64_t n_heads, int64_t head_dim) {
  const Tensor columns = rows.columns_from(begin, n_heads * head_dim);
  return Tensor(columns.bytes(), columns.dtype(), {rows.rows(), n_heads, head_dim},
                columns.device())
      .with_row_stride(rows.row_stride());
}

Projections project(Backend& backend, const BlockShape& shape, const BlockWeights& weights,
                    const BlockInput& input, const ConstTensor& x, const Tensor& out) {
  const int64_t d = shape.head_dim;
  if (x.rows() > 0) {
    run_linear(backend, input, BasisInput::kAttentionInput,
               {.weights = &weights.qkv.dense(), .x = x, .out = out});
    if (weights.query_norm.exists) {
      const TimedScope timed = input.time(&LayerTimes::attend);
      backend.norm_heads({.epsilon = weights.query_norm.epsilon,
                          .query_weight = weights.query_norm.weight.view(),
                          .key_weight = weights.key_norm.weight.view(),
                          .n_queries = shape.n_heads,
                          .x = heads_of(out, 0, shape.n_heads + shape.n_kv_heads, d)});
    }
  }
  return {heads_of(out, 0, shape.n_heads, d), heads_of(out, shape.n_heads * d, shape.n_kv_heads, d),
          heads_of(out, (shape.n_heads + shape.n_kv_heads) * d, shape.n_kv_heads, d)};
}

std::optional<RotaryArgs> rotary_of(const BlockShape& shape, const BlockWeights& weights,
                                    const BlockInput& input, std::span<const int32_t> positions,
                                    const Tensor& qkv) {
  if (!shape.rotary || !weights.rotary || qkv.rows() == 0) return std::nullopt;
  return RotaryArgs{.style = shape.rotary_style,
                    .cosine = input.cosine,
                    .sine = input.sine,
                    .n_tokens = input.n_tokens,
                    .first_position = input.first_position,
                    .positions = positions,
                    // Queries and keys lie side by side.
                    .x = heads_of(qkv, 0, shape.n_heads + shape.n_kv_heads, shape.head_dim)};
}

void run_attention(Backend& backend, const BlockShape& shape, const BlockWeights& weights,
                   const BlockInput& input, Workspace& workspace) {
  if (!input.parts.empty()) return run_ragged_attention(backend, shape, weights, input, workspace);
  if (input.accelerated != nullptr)
    return run_accelerated_attention(backend, shape, weights, input, workspace);
  input.linear_seen(BasisInput::kAttentionInput, workspace.input());
  const Projections heads =
      project(backend, shape, weights, input, workspace.input(), workspace.qkv());
  std::optional<RotaryArgs> rotary = rotary_of(shape, weights, input, {}, workspace.qkv());
  const bool observed = input.observer != nullptr && *input.observer;
  if (observed && rotary) {  // who sees the heads sees them rotated
    backend.rotate(*rotary);
    rotary.reset();
  }
  const Tensor attended = workspace.attended();
  const Tensor out = heads_of(attended, 0, shape.n_heads, shape.head_dim);
  {
    const TimedScope timed = input.time(&LayerTimes::attend);
    backend.store_and_attend(rotary ? &*rotary : nullptr,
                             {.keys = heads.keys,
                              .values = heads.values,
                              .n_tokens = input.n_tokens,
                              .first_position = input.first_position,
                              .cache = input.cache},
                             {.queries = heads.queries,
                              .cache = input.cache,
                              .n_tokens = input.n_tokens,
                              .first_position = input.first_position,
                              .causal = shape.causal,
                              .window = weights.window,
                              .scale = weights.scale,
                              .cap = shape.attention_cap,
                              .out = out});
  }
  if (observed)
    (*input.observer)({.layer = input.layer,
                       .residual = workspace.residual(),
                       .input = workspace.input(),
                       .queries = heads.queries,
                       .keys = heads.keys,
                       .values = heads.values,
                       .attended = out});
  input.linear_seen(BasisInput::kAttentionOutput, attended);
  run_output(
      backend, input,
      {BasisInput::kAttentionOutput, weights.attention_out, weights.attention_post_norm, attended},
      workspace);
}

}  // namespace sluice::impl
