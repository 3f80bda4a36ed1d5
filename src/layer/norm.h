// A normalisation with its parameters on the device.

#pragma once

#include "backend/backend.h"

namespace sluice::impl {

struct Norm {
  NormKind kind = NormKind::kLayer;
  float epsilon = 1e-5f;
  Buffer weight;  // (d) f32, or undefined for ones
  Buffer bias;    // (d) f32, or undefined for zeros
  bool exists = false;

  // squares: as NormArgs has them, or undefined.
  void run(Backend& backend, ConstTensor x, Tensor out, Tensor squares = {}) const {
    backend.norm({.kind = kind,
                  .epsilon = epsilon,
                  .x = x,
                  .weight = weight.view(),
                  .bias = bias.view(),
                  .out = out,
                  .squares = squares});
  }
};

}  // namespace sluice::impl
