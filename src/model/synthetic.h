// Checkpoints of any family and shape with random weights, made in memory: for benchmarks and
// tests.

#pragma once

#include <memory>

#include "io/config.h"
#include "model/checkpoint.h"

namespace sluice::impl {

// Every tensor is a window of one pool of random bf16 numbers, so that a model of a billion
// weights takes no more than its largest tensor. Weights of norms lie around 1, all others around
// 0.
std::shared_ptr<const Checkpoint> synthetic_checkpoint(const ConfigReader& config);

}  // namespace sluice::impl
