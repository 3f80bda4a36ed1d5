// The kernels of our own that linear/linear.h multiplies with.

#pragma once

#include "backend/backend.h"
#include "backend/cuda/runtime/device.h"

namespace sluice::impl::cuda::linear {

// What a product leaves to do: out = activation(sums + bias), or out += sums + bias.
struct FinishArgs {
  ConstTensor sums;   // (n_rows, n_out) f32
  const float* bias;  // (n_out), or null
  Activation activation;
  bool accumulate;
  Tensor out;
};
void finish_rows(Context& context, const FinishArgs& args);

// The whole product of one row of bf16; x as aligned as the weights.
struct OneRowArgs {
  ConstTensor weights;  // (n_out, n_in padded)
  ConstTensor x;        // (1, n_in padded)
  const float* bias;
  Activation activation;
  bool accumulate;
  Tensor out;
};
// Nothing is done where *unwanted, on the device, is not 0.
void multiply_one_row(Context& context, const OneRowArgs& args, const int32_t* unwanted = nullptr);

}  // namespace sluice::impl::cuda::linear
