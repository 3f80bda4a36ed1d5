// The two halves of a block.

#pragma once

#include "layer/block.h"

namespace sluice {

// residual += out_proj(attention(qkv(x))); x is workspace.input().
void run_attention(Backend& backend, const BlockShape& shape, const BlockWeights& weights,
                   const BlockInput& input, Workspace& workspace);

// residual += mlp(x).
void run_mlp(Backend& backend, const BlockShape& shape, const BlockWeights& weights,
             Workspace& workspace);

}  // namespace sluice
