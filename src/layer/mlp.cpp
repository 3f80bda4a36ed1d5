#include "layer/parts.h"

namespace sluice::impl {

void run_mlp(Backend& backend, const BlockShape& shape, const BlockWeights& weights,
             const BlockInput& input, Workspace& workspace) {
  if (shape.kind != BlockKind::kParallel)
    input.linear_seen(BasisInput::kMlpInput, workspace.mlp_input());
  Tensor inner = workspace.mlp_in();
  run_linear(backend, input, BasisInput::kMlpInput,
             {.weights = &weights.mlp_in.dense(),
              .x = workspace.mlp_input(),
              .activation = shape.gated ? Activation::kNone : shape.activation,
              .out = inner});
  if (shape.gated) {
    backend.glu({.activation = shape.activation, .gate_up = inner, .out = workspace.gated()});
    inner = workspace.gated();
  }
  input.linear_seen(BasisInput::kMlpInner, inner);
  run_output(backend, input, {BasisInput::kMlpInner, weights.mlp_out, weights.mlp_post_norm, inner},
             workspace);
}

}  // namespace sluice::impl
