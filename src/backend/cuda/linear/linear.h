// Matrix products: cuBLASLt, and a kernel of our own for a few rows, whose bias and activation then
// cost nothing.

#pragma once

#include <map>

#include "backend/backend.h"
#include "backend/cuda/linear/kernels.h"
#include "backend/cuda/runtime/device.h"

namespace sluice::impl::cuda::linear {

// Columns are padded with zeros to a multiple of this, so that every row begins aligned.
constexpr int64_t kPad = 8;

// A matrix on the device, as (n_out, n_in) rows of the compute dtype.
struct DeviceMatrix {
  DeviceMatrix() = default;
  DeviceMatrix(const std::shared_ptr<Context>& context, DType dtype, int64_t n_rows, int64_t width);

  Tensor rows;    // (n_rows, width), rows padded with zeros
  Tensor padded;  // (n_rows, width rounded up)
  DeviceArray<std::byte> memory;
};

// A bias on the device; null where there is none.
struct BiasView {
  const float* values;    // (n_out)
  const uint16_t* exact;  // the same in bf16, where that loses nothing

  BiasView from(int64_t row) const {
    return {values != nullptr ? values + row : nullptr, exact != nullptr ? exact + row : nullptr};
  }
};

struct DeviceBias {
  DeviceBias() = default;
  DeviceBias(const std::shared_ptr<Context>& context, const std::vector<float>& bias);
  BiasView view() const { return {values.data(), exact.data()}; }

  DeviceArray<float> values;    // (n_out), or nothing
  DeviceArray<uint16_t> exact;  // the same in bf16, where that loses nothing
};

struct DeviceWeights final : LinearWeights {
  DeviceWeights(DeviceMatrix from, DeviceBias its_bias)
      : LinearWeights(from.rows.rows(), from.rows.row_elements(),
                      from.rows.shape().numel() * element_bytes(from.rows.dtype())),
        matrix(std::move(from)),
        bias(std::move(its_bias)) {}
  DeviceMatrix matrix;
  DeviceBias bias;
};

class Multiplier {
 public:
  // own_row: one row of bf16 is multiplied by a kernel of our own.
  explicit Multiplier(std::shared_ptr<Context> context, bool own_row = true);
  ~Multiplier();
  Multiplier(const Multiplier&) = delete;
  Multiplier& operator=(const Multiplier&) = delete;

  // args.weights is not used. The second: weights padded as a DeviceMatrix's are.
  void run(const DeviceMatrix& weights, const DeviceBias& bias, const LinearArgs& args) {
    run(weights.padded, bias.view(), args);
  }
  void run(const ConstTensor& weights, const BiasView& bias, const LinearArgs& args);
  // x itself, or an aligned and padded copy, which lives until the next one is made.
  ConstTensor aligned(const ConstTensor& x);

 private:
  // A product as cuBLASLt sees it.
  struct Product {
    int64_t n_out, n_rows, depth;
    int64_t weights_stride, x_stride, out_stride;
    bool bf16, bf16_out, accumulate;
    cublasLtEpilogue_t epilogue;
    auto operator<=>(const Product&) const = default;
  };
  struct Operands {
    const void* weights;
    const void* x;
    void* out;
    const void* bias;  // of the output's dtype, where the epilogue takes one
  };
  struct Plan;

  void multiply(const Product& product, const Operands& operands);
  // bias: any that the plan may be run with.
  const Plan& plan(const Product& product, const void* bias);

  std::shared_ptr<Context> context_;
  bool own_row_;
  std::map<Product, std::unique_ptr<Plan>> plans_;
  DeviceArray<std::byte> copy_;  // of x
  DeviceArray<float> sums_;
};

}  // namespace sluice::impl::cuda::linear
