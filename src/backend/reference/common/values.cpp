#include "backend/reference/common/values.h"

#include <cmath>
#include <numbers>

namespace sluice::impl::reference {

namespace {

template <typename View>
float load_from(const View& x, int64_t row, int64_t column) {
  if (x.dtype() == DType::kBF16) return to_float(x.template row<BFloat16>(row)[column]);
  return x.template row<float>(row)[column];
}

}  // namespace

float load(const ConstTensor& x, int64_t row, int64_t column) { return load_from(x, row, column); }
float load(const Tensor& x, int64_t row, int64_t column) { return load_from(x, row, column); }

void store(const Tensor& x, int64_t row, int64_t column, float value) {
  if (x.dtype() == DType::kBF16)
    x.row<BFloat16>(row)[column] = to_bfloat16(value);
  else
    x.row<float>(row)[column] = value;
}

float activate(Activation activation, float x) {
  const double v = x;
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return x > 0 ? x : 0.0f;
    case Activation::kGeluErf:
      return static_cast<float>(0.5 * v * (1 + std::erf(v * std::numbers::sqrt2 / 2)));
    case Activation::kGeluTanh: {
      const double c = std::sqrt(2 / std::numbers::pi);
      return static_cast<float>(0.5 * v * (1 + std::tanh(c * (v + 0.044715 * v * v * v))));
    }
    case Activation::kSilu:
      return static_cast<float>(v / (1 + std::exp(-v)));
  }
  SLUICE_CHECK(!"unknown activation");
}

}  // namespace sluice::impl::reference
