#include "layer/parts.h"

namespace sluice {
namespace {

// Columns [begin, begin + n_heads * head_dim) of a (n_rows, width) matrix as heads.
Tensor heads_of(const Tensor& rows, int64_t begin, int64_t n_heads, int64_t head_dim) {
  const Tensor columns = rows.columns_from(begin, n_heads * head_dim);
  return Tensor(columns.bytes(), columns.dtype(), {rows.rows(), n_heads, head_dim},
                columns.device())
      .with_row_stride(rows.row_stride());
}

}  // namespace

void run_attention(Backend& backend, const BlockShape& shape, const BlockWeights& weights,
                   const BlockInput& input, Workspace& workspace) {
  const Tensor qkv = workspace.qkv();
  backend.linear({.weights = weights.qkv.get(), .x = workspace.input(), .out = qkv});

  const int64_t d = shape.head_dim;
  const Tensor queries = heads_of(qkv, 0, shape.n_heads, d);
  const Tensor keys = heads_of(qkv, shape.n_heads * d, shape.n_kv_heads, d);
  const Tensor values = heads_of(qkv, (shape.n_heads + shape.n_kv_heads) * d, shape.n_kv_heads, d);
  if (shape.rotary) {
    for (const Tensor& x : {queries, keys})
      backend.rotate({.style = shape.rotary_style,
                      .cosine = input.cosine,
                      .sine = input.sine,
                      .n_tokens = input.n_tokens,
                      .first_position = input.first_position,
                      .x = x});
  }
  backend.store_kv({.keys = keys,
                    .values = values,
                    .n_tokens = input.n_tokens,
                    .first_position = input.first_position,
                    .cache = input.cache});
  const Tensor attended = workspace.attended();
  backend.attend_dense({.queries = queries,
                        .cache = input.cache,
                        .n_tokens = input.n_tokens,
                        .first_position = input.first_position,
                        .causal = shape.causal,
                        .window = weights.window,
                        .scale = weights.scale,
                        .out = heads_of(attended, 0, shape.n_heads, d)});
  backend.linear({.weights = weights.attention_out.get(),
                  .x = attended,
                  .accumulate = true,
                  .out = workspace.residual()});
}

}  // namespace sluice
