// Conversion, rows gathered and added, and gates.

#include <cmath>

#include "backend/reference/common/values.h"
#include "backend/reference/elementwise/elementwise.h"

namespace sluice::impl::reference::elementwise {

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
  SLUICE_CHECK(static_cast<int64_t>(rows.size()) == to.rows() ||
               (rows.empty() && from.rows() == to.rows()));
  for (int64_t row = 0; row < to.rows(); ++row) {
    const int64_t at = rows.empty() ? row : rows[static_cast<size_t>(row)];
    for (int64_t i = 0; i < to.row_elements(); ++i)
      store(to, row, i, load(to, row, i) + load(from, at, i));
  }
}

void soft_cap(float cap, Tensor x) {
  SLUICE_CHECK(cap > 0);
  for (int64_t row = 0; row < x.rows(); ++row)
    for (int64_t i = 0; i < x.row_elements(); ++i)
      store(x, row, i, static_cast<float>(cap * std::tanh(double{load(x, row, i)} / cap)));
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

}  // namespace sluice::impl::reference::elementwise
