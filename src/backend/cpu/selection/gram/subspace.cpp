#include "backend/cpu/selection/gram/subspace.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/cpu/primitives/score_rows.h"
#include "core/threads.h"

namespace sluice::impl::cpu::selection {
namespace {

// Multiplications worth a thread.
constexpr int64_t kThreadBasisWork = int64_t{1} << 18;

// Columns whose coordinates are found at once.
constexpr int64_t kFreshColumns = 256;

}  // namespace

Subspace::Subspace(const gemm::Kernel& kernel, std::shared_ptr<const SelectionBasis> basis)
    : kernel_(&kernel),
      basis_(std::move(basis)),
      deviation_(basis_->deviation(kernel.b_dtype)),
      vectors_(host_buffer(kernel.b_dtype,
                           {kernel.panels(rank()), kernel.panel_elements(basis_->d_model())})),
      rows_(kernel, rank()),
      fresh_(kernel, rank()),
      columns_(kernel, rank(), 0) {
  const int64_t d = basis_->d_model();
  for (int64_t first = 0; first < rank(); first += kernel.nr)
    gemm::pack_panel_rows(kernel, basis_->vectors().data() + first * d, d,
                          std::min(kernel.nr, rank() - first), d,
                          vectors_.view().rows_from(first / kernel.nr, 1).bytes());
}

// With V the packed vectors and n their deviation, h = V x has
//
//   x_s . x_t = h_s . h_t + x_s (1 - Vt V) x_t,
//
// where 1 - Vt V is the projection Q on what V does not reach, and at most n on what it does: the
// second term is at most |Q x_s| |Q x_t| + n, and |Q x|^2 at most |x|^2 - |h|^2 + n. The norm of h
// is at most sqrt(1 + n) and the coordinates are within their rounding of h.
double Subspace::error(double rounding_a, double rounding_b) const {
  return (1 + deviation_) * gram_error(rank(), rounding_a, rounding_b) + deviation_;
}

// Coordinates of row i, which come as the sums of packed elements.
void Subspace::finish(const Row& row, float* coordinates, int64_t i, Rows& to) const {
  const int64_t k = rank();
  for (int64_t j = 0; j < k; ++j) coordinates[j] *= row.packed_inverse;
  Row out{.position = row.position, .inverse_norm = 1, .packed_inverse = 1};
  if (row.packed_inverse > 0) {
    float squares = 0;
    primitives::dot_rows(coordinates, coordinates, k, 1, k, &squares);
    const double norm = std::sqrt(double{squares} * (1 - static_cast<double>(k + 16) * 0x1p-24));
    // The rounding of the row, of every coordinate's sum, and of its scaling.
    const double sums = std::sqrt(static_cast<double>(k)) * sum_error(basis_->d_model());
    const double error =
        (1 + deviation_) * (row.rounding + sums * (1 + double{row.rounding})) + 0x1p-22;
    const double reached = std::max(0.0, norm - error);
    const double rest = std::max(0.0, 1 - reached * reached + deviation_);
    out.residual = static_cast<float>(std::sqrt(rest) * (1 + 0x1p-20));
    out.rounding = static_cast<float>(error * (1 + 0x1p-20));
  }
  to.set(i, out, coordinates);
}

// load(first, n) gives n packed rows from `first` on, and the Row of each.
template <typename Load>
void Subspace::project(int64_t n, const Load& load, Rows& to) {
  to.resize(n);
  const int64_t d_end = kernel_->padded_k(basis_->d_model()), mr = kernel_->mr;
  const int64_t n_panels = kernel_->panels(rank()), width = n_panels * kernel_->nr;
  const int64_t bytes = element_bytes(kernel_->a_dtype);
  parallel_for((n + mr - 1) / mr, 1 + kThreadBasisWork / (mr * width * d_end),
               [&](int64_t begin, int64_t end) {
                 thread_local std::vector<float> products;
                 products.resize(static_cast<size_t>(mr * width));
                 for (int64_t tile = begin; tile < end; ++tile) {
                   const int64_t first = tile * mr, height = std::min(mr, n - first);
                   const Packed packed = load.packed(first, height);
                   for (int64_t k = 0; k < d_end; k += kDepth)
                     for (int64_t panel = 0; panel < n_panels; ++panel)
                       kernel_->tiles[height - 1]({.a = packed.rows + k * bytes,
                                                   .a_stride = packed.stride,
                                                   .b = vectors_.view().bytes() +
                                                        (panel * d_end + k) * kernel_->nr * bytes,
                                                   .k = std::min(kDepth, d_end - k),
                                                   .c = products.data() + panel * kernel_->nr,
                                                   .c_stride = width,
                                                   .accumulate = k > 0});
                   for (int64_t i = 0; i < height; ++i)
                     finish(load.row(first + i), products.data() + i * width, first + i, to);
                 }
               });
}

void Subspace::take_rows(const Rows& rows, int64_t n) {
  struct {
    const Rows& rows;
    Packed packed(int64_t first, int64_t) const { return {rows.packed(first), rows.stride()}; }
    const Row& row(int64_t i) const { return rows[i]; }
  } const load{rows};
  project(n, load, rows_);
}

// Columns are read back from their panels: kept once, projected twice (as a row of their block
// too), which costs less than it takes to remember which rows became columns.
void Subspace::take_columns(const Columns& columns, int64_t n) {
  while (columns_.size() < n) {
    struct {
      const Columns& columns;
      int64_t first, stride, row_bytes;
      Packed packed(int64_t i, int64_t height) const {
        thread_local std::vector<std::byte> scratch;
        scratch.resize(static_cast<size_t>(height * row_bytes));
        for (int64_t r = 0; r < height; ++r)
          columns.unpack(first + i + r, scratch.data() + r * row_bytes);
        return {scratch.data(), stride};
      }
      const Row& row(int64_t i) const { return columns[first + i]; }
    } const load{columns, columns_.size(), kernel_->padded_k(basis_->d_model()),
                 kernel_->padded_k(basis_->d_model()) * element_bytes(kernel_->b_dtype)};
    const int64_t count = std::min(kFreshColumns, n - columns_.size());
    project(count, load, fresh_);
    std::vector<int64_t> all(static_cast<size_t>(count));
    std::iota(all.begin(), all.end(), 0);
    columns_.append(fresh_, all);
  }
}

}  // namespace sluice::impl::cpu::selection
