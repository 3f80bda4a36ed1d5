// Gated subspace and graded linear layers, docs/algorithm.md section 4.

#include "backend/reference/subspace/subspace.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/reference/common/values.h"

namespace sluice::impl::reference::subspace {

Columns::Columns(const MatrixSource& source, DType dtype)
    : ColumnWeights(source.n_out, source.n_in, source.n_out * element_bytes(dtype), 1.0),
      weights(source, dtype) {}

Basis::Basis(std::span<const float> values, int64_t rank, int64_t n_in, DType dtype)
    : SubspaceBasis(rank, n_in, rank * n_in * element_bytes(dtype)),
      vectors(host_buffer(dtype, {rank, n_in})) {
  SLUICE_CHECK(rank > 0 && static_cast<int64_t>(values.size()) == rank * n_in);
  for (int64_t j = 0; j < rank; ++j)
    for (int64_t i = 0; i < n_in; ++i)
      store(vectors.view(), j, i, values[static_cast<size_t>(j * n_in + i)]);
}

void project(const ProjectArgs& args) {
  const auto& basis = dynamic_cast<const Basis&>(*args.basis);
  const Tensor& vectors = basis.vectors.view();
  SLUICE_CHECK(args.x.row_elements() == basis.n_in());
  SLUICE_CHECK(args.coordinates.row_elements() == basis.rank());
  for (int64_t row = 0; row < args.x.rows(); ++row) {
    for (int64_t j = 0; j < basis.rank(); ++j) {
      double sum = 0;
      for (int64_t i = 0; i < basis.n_in(); ++i)
        sum += double{load(args.x, row, i)} * load(vectors, j, i);
      store(args.coordinates, row, j, static_cast<float>(sum));
    }
    double norm = 0, missed = 0;
    for (int64_t i = 0; i < basis.n_in(); ++i) {
      const double x = load(args.x, row, i);
      double rest = x;
      for (int64_t j = 0; j < basis.rank(); ++j)
        rest -= double{load(vectors, j, i)} * load(args.coordinates, row, j);
      norm += x * x;
      missed += rest * rest;
    }
    const double share = norm == 0 ? 0 : std::sqrt(missed / norm);
    args.residuals[static_cast<size_t>(row)] =
        std::isfinite(share) ? static_cast<float>(share) : 1.0f;
  }
}

void grade(const GradeArgs& args) {
  const int64_t n = args.x.row_elements();
  SLUICE_CHECK(args.graded.shape() == args.x.shape() && args.epsilon >= 0);
  std::vector<int64_t> order(static_cast<size_t>(n));
  for (int64_t row = 0; row < args.x.rows(); ++row) {
    double total = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double x = load(args.x, row, i);
      total += x * x;
    }
    const double budget = std::isfinite(total) ? args.epsilon * args.epsilon * total : 0;
    std::iota(order.begin(), order.end(), 0);
    // NaN counts as larger than any number.
    const auto magnitude = [&](int64_t i) {
      const float x = std::abs(load(args.x, row, i));
      return std::isnan(x) ? INFINITY : x;
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return magnitude(a) < magnitude(b); });
    for (int64_t i = 0; i < n; ++i) store(args.graded, row, i, load(args.x, row, i));
    double left_out = 0;
    int64_t kept = n;
    for (const int64_t i : order) {
      const double x = magnitude(i);
      left_out += x * x;
      if (!(left_out <= budget)) break;
      store(args.graded, row, i, 0.0f);
      --kept;
    }
    args.kept[static_cast<size_t>(row)] = static_cast<int32_t>(kept);
  }
}

void linear_columns(const LinearColumnsArgs& args) {
  linear::linear({.weights = &dynamic_cast<const Columns&>(*args.weights).weights,
                  .x = args.x,
                  .activation = args.activation,
                  .accumulate = args.accumulate,
                  .out = args.out});
}

std::unique_ptr<LinearWeights> pack_image(const MatrixSource& source, const SubspaceBasis& basis,
                                          DType dtype) {
  const Tensor& vectors = dynamic_cast<const Basis&>(basis).vectors.view();
  SLUICE_CHECK(source.n_in == basis.n_in());
  MatrixSource image{
      .n_out = source.n_out, .n_in = basis.rank(), .read_rows = {}, .bias = source.bias};
  image.read_rows = [&](int64_t begin, int64_t end, float* out) {
    std::vector<float> rows(static_cast<size_t>((end - begin) * source.n_in));
    source.read_rows(begin, end, rows.data());
    for (int64_t n = 0; n < end - begin; ++n)
      for (int64_t j = 0; j < basis.rank(); ++j) {
        double sum = 0;
        for (int64_t i = 0; i < source.n_in; ++i)
          sum += double{rows[static_cast<size_t>(n * source.n_in + i)]} * load(vectors, j, i);
        *out++ = static_cast<float>(sum);
      }
  };
  return std::make_unique<linear::Weights>(image, dtype);
}

}  // namespace sluice::impl::reference::subspace
