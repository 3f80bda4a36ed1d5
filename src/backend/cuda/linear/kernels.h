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

// The whole product for at most kFewRows rows of bf16; x as aligned as the weights.
constexpr int64_t kFewRows = 8;
struct FewRowsArgs {
  ConstTensor weights;  // (n_out, n_in padded)
  ConstTensor x;        // (n_rows, n_in padded)
  const float* bias;
  Activation activation;
  bool accumulate;
  Tensor out;
};
void multiply_few_rows(Context& context, const FewRowsArgs& args);
// The same for one row, with less between the memory and the sums. Nothing is done where *unwanted,
// on the device, is not 0.
void multiply_one_row(Context& context, const FewRowsArgs& args, const int32_t* unwanted = nullptr);

}  // namespace sluice::impl::cuda::linear
