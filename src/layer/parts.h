// The two halves of a block.

#pragma once

#include <optional>

#include "layer/block.h"

namespace sluice::impl {

// residual += out_proj(attention(qkv(x))); x is workspace.input().
void run_attention(Backend& backend, const BlockShape& shape, const BlockWeights& weights,
                   const BlockInput& input, Workspace& workspace);

// The same when the layer's plan is not dense; input.accelerated says how.
void run_accelerated_attention(Backend& backend, const BlockShape& shape,
                               const BlockWeights& weights, const BlockInput& input,
                               Workspace& workspace);

// The same of a ragged batch, input.parts.
void run_ragged_attention(Backend& backend, const BlockShape& shape, const BlockWeights& weights,
                          const BlockInput& input, Workspace& workspace);

// Of an accelerated layer: lets it choose from the rows of workspace, which are those of `input`.
// Throws Error where an earlier pass did not come to its end.
void select_tokens(const BlockInput& input, Workspace& workspace);

// Columns [begin, begin + n_heads * head_dim) of a (n_rows, width) matrix as heads.
Tensor heads_of(const Tensor& rows, int64_t begin, int64_t n_heads, int64_t head_dim);

// q, k and v of rows, as heads of one (n_rows, q + k + v widths) matrix.
struct Projections {
  Tensor queries;       // (n_rows, n_heads, head_dim)
  Tensor keys, values;  // (n_rows, n_kv_heads, head_dim)
};
// Attention of the next tokens of a sequence of an accelerated layer in which every query attends.
void attend_sequence(LayerAttention& layer, int64_t batch, bool exact, const AttendRefineArgs& all);
// Projects x into out, and norms the heads of queries and keys where the layer does.
Projections project(Backend& backend, const BlockShape& shape, const BlockWeights& weights,
                    const BlockInput& input, const ConstTensor& x, const Tensor& out);
// Arguments that rotate queries and keys of such a matrix; none for a layer without rotary
// embedding. positions: of the rows, when they are not the pass's own in order.
std::optional<RotaryArgs> rotary_of(const BlockShape& shape, const BlockWeights& weights,
                                    const BlockInput& input, std::span<const int32_t> positions,
                                    const Tensor& qkv);

// By the gate of that input, or densely where there is none: args.weights is the dense form.
void run_linear(Backend& backend, const BlockInput& input, BasisInput which,
                const LinearArgs& args);

// The same of the last product of a half of a block, for all ranks together where it is divided.
void run_last_product(Backend& backend, const BlockInput& input, BasisInput which,
                      const LinearGroup& group, const LinearArgs& args);

// The last product of a half of a block.
struct HalfOutput {
  BasisInput which;
  const LinearGroup& group;
  const Norm& post_norm;  // of the product, or one that does not exist
  ConstTensor x;
};
// Adds it to the residual stream.
void run_output(Backend& backend, const BlockInput& input, const HalfOutput& half,
                Workspace& workspace);

// residual += mlp(x).
void run_mlp(Backend& backend, const BlockShape& shape, const BlockWeights& weights,
             const BlockInput& input, Workspace& workspace);

}  // namespace sluice::impl
