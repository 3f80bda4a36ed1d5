// Single elements: reading, writing, activations, conversion and gates.

#include <cmath>
#include <numbers>

#include "backend/reference/reference.h"

namespace sluice::impl::reference {

float load(const ConstTensor& x, int64_t row, int64_t column) {
  if (x.dtype() == DType::kBF16) return to_float(x.row<BFloat16>(row)[column]);
  return x.row<float>(row)[column];
}

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

void convert(ConstTensor from, Tensor to) {
  SLUICE_CHECK(from.shape() == to.shape());
  for (int64_t row = 0; row < from.rows(); ++row)
    for (int64_t i = 0; i < from.row_elements(); ++i) store(to, row, i, load(from, row, i));
}

void gather_rows(ConstTensor from, std::span<const int32_t> rows, Tensor to) {
  SLUICE_CHECK(static_cast<int64_t>(rows.size()) == to.rows());
  for (int64_t row = 0; row < to.rows(); ++row)
    for (int64_t i = 0; i < to.row_elements(); ++i)
      store(to, row, i, load(from, rows[static_cast<size_t>(row)], i));
}

void add_rows(ConstTensor from, std::span<const int32_t> rows, Tensor to) {
  SLUICE_CHECK(static_cast<int64_t>(rows.size()) == to.rows());
  for (int64_t row = 0; row < to.rows(); ++row)
    for (int64_t i = 0; i < to.row_elements(); ++i)
      store(to, row, i, load(to, row, i) + load(from, rows[static_cast<size_t>(row)], i));
}

void glu(const GluArgs& args) {
  const int64_t d_inner = args.out.row_elements();
  SLUICE_CHECK(args.gate_up.row_elements() == 2 * d_inner);
  for (int64_t row = 0; row < args.out.rows(); ++row)
    for (int64_t i = 0; i < d_inner; ++i)
      store(args.out, row, i,
            activate(args.activation, load(args.gate_up, row, i)) *
                load(args.gate_up, row, d_inner + i));
}

}  // namespace sluice::impl::reference
