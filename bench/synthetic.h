// Checkpoints of a real model's shape with random weights, made in memory.

#pragma once

#include <memory>

#include "io/config.h"
#include "model/checkpoint.h"

namespace sluice::bench {

// Every tensor is a window of one pool of random bf16 numbers, so that a model of a billion
// weights takes no more than its largest tensor.
std::shared_ptr<const Checkpoint> synthetic_checkpoint(const ConfigReader& config);

}  // namespace sluice::bench
