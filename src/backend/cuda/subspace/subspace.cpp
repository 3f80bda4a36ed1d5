#include "backend/cuda/subspace/subspace.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/cuda/elementwise/elements.h"
#include "backend/cuda/linear/pack.h"
#include "backend/cuda/subspace/kernels.h"

namespace sluice::impl::cuda::subspace {
namespace {

// Below this share of its columns a row's product is faster by columns. Measured on an H200, one
// row of 16384 x 4096: a fifth of the columns took 22 us, two fifths 36, all of them by the dense
// product 32.
constexpr double kWorthShare = 0.33;

int64_t bytes_of_row(const linear::DeviceMatrix& matrix) {
  return matrix.rows.row_elements() * element_bytes(matrix.rows.dtype());
}

linear::DeviceMatrix transposed(const std::shared_ptr<Context>& context, const MatrixSource& source,
                                DType dtype) {
  linear::DeviceMatrix columns(context, dtype, source.n_in, source.n_out);
  linear::stream_rows(context, source, [&](int64_t first, const ConstTensor& rows) {
    elementwise::transpose_into(*context, rows, first, columns.rows);
  });
  return columns;
}

// Frobenius's norm.
double norm_of(const std::shared_ptr<Context>& context, const linear::DeviceMatrix& matrix) {
  const DeviceArray<double> sum(context, 1);
  sum_squares(*context, matrix.rows, sum.data());
  double squares = 0;
  context->fetch(sum.data(), &squares, sizeof squares);
  return std::sqrt(squares);
}

// The norm of E is that of E^4 to the power of 1/4, which Frobenius's bounds: for the rounding of
// 256 directions by a factor of 1.4, where E's own would by one of 8.
Deviation deviation_of(const std::shared_ptr<Context>& context, linear::Multiplier& multiplier,
                       const linear::DeviceMatrix& vectors) {
  const int64_t rank = vectors.rows.rows();
  Deviation deviation{.diagonal = DeviceArray<float>(context, rank),
                      .overlaps = linear::DeviceMatrix(context, DType::kBF16, rank, rank)};
  linear::DeviceMatrix wide(context, DType::kF32, rank, vectors.rows.row_elements());
  elementwise::convert(*context, vectors.rows, wide.rows);
  const auto squared = [&](const linear::DeviceMatrix& rows) {
    linear::DeviceMatrix product(context, DType::kF32, rank, rank);
    multiplier.run(rows, {}, {.weights = nullptr, .x = rows.rows, .out = product.rows});
    return product;
  };
  const linear::DeviceMatrix gram = squared(wide);
  split_deviation(*context, gram.rows, deviation.diagonal.data(), deviation.overlaps.rows);
  constexpr double kBF16Unit = 0x1p-9;
  deviation.rounding = kBF16Unit * norm_of(context, gram);
  const double fourth = norm_of(context, squared(squared(gram)));
  // Products in f32 err by less than a hundredth.
  deviation.norm = std::isfinite(fourth) ? 1.01 * std::pow(fourth, 0.25) : INFINITY;
  return deviation;
}

// The definition itself, for a row whose sums fall too near the budget: float64 in the order of
// the definition.
RowCut exact_cut(const std::vector<float>& row, double squared_epsilon) {
  const auto n = row.size();
  std::vector<uint32_t> bits(n);
  double total = 0;
  for (size_t i = 0; i < n; ++i) {
    total += double{row[i]} * row[i];
    bits[i] = std::min(std::bit_cast<uint32_t>(row[i]) & 0x7fffffffu, kAboveAll - 1);
  }
  const double budget = std::isfinite(total) ? squared_epsilon * total : 0;
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return bits[a] < bits[b]; });
  double left_out = 0;
  size_t count = 0;
  for (; count < n; ++count) {
    const double size = std::bit_cast<float>(bits[order[count]]);
    left_out += size * size;
    if (!(left_out <= budget)) break;
  }
  RowCut cut{kAboveAll, 0, static_cast<int32_t>(n - count), 0};
  if (count == n) return cut;
  cut.bits = bits[order[count]];
  for (size_t i = 0; i < count; ++i) cut.n_ties += bits[order[i]] == cut.bits;
  return cut;
}

std::vector<float> fetch_row(Context& context, const ConstTensor& row) {
  const auto n = static_cast<size_t>(row.row_elements());
  std::vector<float> values(n);
  if (row.dtype() == DType::kF32) {
    context.fetch(row.bytes(), values.data(), static_cast<int64_t>(n * sizeof(float)));
    return values;
  }
  std::vector<BFloat16> narrow(n);
  context.fetch(row.bytes(), narrow.data(), static_cast<int64_t>(n * sizeof(BFloat16)));
  std::transform(narrow.begin(), narrow.end(), values.begin(),
                 [](BFloat16 x) { return to_float(x); });
  return values;
}

}  // namespace

DeviceColumns::DeviceColumns(linear::DeviceMatrix by_columns, linear::DeviceBias its_bias)
    : ColumnWeights(by_columns.rows.row_elements(), by_columns.rows.rows(),
                    bytes_of_row(by_columns), kWorthShare),
      columns(std::move(by_columns)),
      bias(std::move(its_bias)) {}

std::unique_ptr<DeviceBasis> make_basis(const std::shared_ptr<Context>& context,
                                        std::span<const float> vectors, int64_t rank, int64_t n_in,
                                        DType dtype) {
  SLUICE_CHECK(rank > 0 && static_cast<int64_t>(vectors.size()) == rank * n_in);
  const MatrixSource source{.n_out = rank,
                            .n_in = n_in,
                            .read_rows =
                                [&](int64_t begin, int64_t end, float* out) {
                                  std::copy(vectors.begin() + begin * n_in,
                                            vectors.begin() + end * n_in, out);
                                },
                            .bias = {}};
  return std::make_unique<DeviceBasis>(linear::pack_matrix(context, source, dtype),
                                       transposed(context, source, dtype));
}

const Deviation& DeviceBasis::deviation(const std::shared_ptr<Context>& context,
                                        linear::Multiplier& multiplier) const {
  if (!deviation_) deviation_ = deviation_of(context, multiplier, vectors);
  return *deviation_;
}

std::unique_ptr<DeviceColumns> pack_columns(const std::shared_ptr<Context>& context,
                                            const MatrixSource& source, DType dtype) {
  return std::make_unique<DeviceColumns>(transposed(context, source, dtype),
                                         linear::DeviceBias(context, source.bias));
}

// In f32, from the weights as the source has them: rounded once, at the end.
std::unique_ptr<linear::DeviceWeights> pack_image(const std::shared_ptr<Context>& context,
                                                  linear::Multiplier& multiplier,
                                                  const MatrixSource& source,
                                                  const DeviceBasis& basis, DType dtype) {
  SLUICE_CHECK(source.n_in == basis.n_in());
  const int64_t rank = basis.rank();
  linear::DeviceMatrix wide(context, DType::kF32, rank, basis.n_in());
  elementwise::convert(*context, basis.vectors.rows, wide.rows);
  linear::DeviceMatrix image(context, dtype, source.n_out, rank);
  linear::stream_rows(context, source, [&](int64_t first, const ConstTensor& rows) {
    const linear::DeviceMatrix product(context, DType::kF32, rows.rows(), rank);
    multiplier.run(wide, {}, {.weights = nullptr, .x = rows, .out = product.rows});
    elementwise::convert(*context, product.rows, image.rows.rows_from(first, rows.rows()));
  });
  return std::make_unique<linear::DeviceWeights>(std::move(image),
                                                 linear::DeviceBias(context, source.bias));
}

// ||x||^2 - ||c||^2 cancels. On a device V c costs so little that x - V c is always computed.
void project(const std::shared_ptr<Context>& context, linear::Multiplier& multiplier,
             const ProjectArgs& args) {
  const auto& basis = dynamic_cast<const DeviceBasis&>(*args.basis);
  const int64_t n_rows = args.x.rows();
  SLUICE_CHECK(args.x.row_elements() == basis.n_in());
  SLUICE_CHECK(args.coordinates.row_elements() == basis.rank());
  SLUICE_CHECK(static_cast<int64_t>(args.residuals.size()) == n_rows);
  if (n_rows == 0) return;
  multiplier.run(basis.vectors, {}, {.weights = nullptr, .x = args.x, .out = args.coordinates});
  const int64_t stride = round_up(basis.n_in(), linear::kPad);
  auto* memory = static_cast<float*>(context->scratch(
      checked_mul(checked_mul(n_rows, stride + 1), static_cast<int64_t>(sizeof(float)))));
  const Tensor back =
      Tensor(memory, DType::kF32, {n_rows, stride}, Device::kCuda).columns_from(0, basis.n_in());
  float* residuals = memory + n_rows * stride;
  multiplier.run(basis.columns, {}, {.weights = nullptr, .x = args.coordinates, .out = back});
  residual_rows(*context, args.x, back, residuals);
  context->fetch(residuals, args.residuals.data(), n_rows * static_cast<int64_t>(sizeof(float)));
}

void grade(const std::shared_ptr<Context>& context, const GradeArgs& args) {
  const int64_t n_rows = args.x.rows();
  SLUICE_CHECK(args.x.shape() == args.graded.shape() && args.x.dtype() == args.graded.dtype());
  SLUICE_CHECK(static_cast<int64_t>(args.kept.size()) == n_rows && args.epsilon >= 0);
  if (n_rows == 0) return;
  const double squared_epsilon = args.epsilon * args.epsilon;
  auto* cuts = static_cast<RowCut*>(
      context->scratch(checked_mul(n_rows, static_cast<int64_t>(sizeof(RowCut)))));
  find_cuts(*context, args.x, squared_epsilon, cuts);
  apply_cuts(*context, args.x, cuts, args.graded);
  std::vector<RowCut> found(static_cast<size_t>(n_rows));
  context->fetch(cuts, found.data(), n_rows * static_cast<int64_t>(sizeof(RowCut)));
  for (int64_t row = 0; row < n_rows; ++row) {
    RowCut& cut = found[static_cast<size_t>(row)];
    if (cut.unsure != 0) {
      const ConstTensor x = args.x.rows_from(row, 1);
      cut = exact_cut(fetch_row(*context, x), squared_epsilon);
      context->send(&cut, cuts + row, sizeof cut);
      apply_cuts(*context, x, cuts + row, args.graded.rows_from(row, 1));
    }
    args.kept[static_cast<size_t>(row)] = cut.n_kept;
  }
}

void linear_columns(const std::shared_ptr<Context>& context, const LinearColumnsArgs& args) {
  const auto& weights = dynamic_cast<const DeviceColumns&>(*args.weights);
  const int64_t n_rows = args.x.rows(), n_in = weights.n_in();
  SLUICE_CHECK(args.x.row_elements() == n_in && args.out.row_elements() == weights.n_out());
  SLUICE_CHECK(args.out.rows() == n_rows);
  SLUICE_CHECK(!args.accumulate ||
               (args.activation == Activation::kNone && args.out.dtype() == DType::kF32));
  if (n_rows == 0) return;
  const int64_t n_splits = column_splits(*context, weights.n_out());
  const int64_t n_partial = checked_mul(n_rows * n_splits, weights.columns.padded.row_elements());
  // Partial sums, values, their columns and how many they are: four bytes each.
  const int64_t n_words = checked_add(n_partial, checked_mul(n_rows, 2 * n_in + 1));
  auto* partial = static_cast<float*>(context->scratch(checked_mul(n_words, 4)));
  float* values = partial + n_partial;
  auto* columns = reinterpret_cast<int32_t*>(values + n_rows * n_in);
  const NonZeros nonzeros{columns, values, columns + n_rows * n_in};
  find_nonzeros(*context, args.x, nonzeros);
  multiply_columns(*context, {.columns = weights.columns.padded,
                              .x = nonzeros,
                              .n_splits = n_splits,
                              .partial = partial,
                              .bias = weights.bias.values.data(),
                              .activation = args.activation,
                              .accumulate = args.accumulate,
                              .out = args.out});
}

}  // namespace sluice::impl::cuda::subspace
