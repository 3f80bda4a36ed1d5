// Projection on a basis, and the share of x that the coordinates c miss. One row: a pass over V at
// the speed of memory gives h = V^T x, and most residuals follow from it without a second one:
//
//   ||x - V c||^2 = ||x||^2 - 2 c.h + c.c + c.(E c),   E = V^T V - 1,
//
// where E is what the vectors, as stored, are short of orthonormal. Small residuals would cancel;
// below kCancels they are computed as they are defined, from x - V c. Many rows: two packed
// products. What the formula errs by: subspace/deviation.h.

#include "backend/cpu/subspace/subspace.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "backend/cpu/gemm/columns_simd.h"
#include "backend/cpu/gemm/linear.h"
#include "backend/cpu/primitives/rows.h"
#include "backend/cpu/subspace/deviation.h"
#include "core/threads.h"

namespace sluice::impl::cpu::subspace {
namespace {

// From here on packing V, twice, costs less than passing over it row by row.
constexpr int64_t kPackedRows = 32;
// Rows whose V c is held at once.
constexpr int64_t kRowBlock = 128;
// Directions of a group share one partial sum of V c. Groups depend on the rank only, so that the
// number of threads does not change a bit; 8 of them divide among most numbers of threads, and in
// groups of 32 directions the partial sums are a small part of what is read.
constexpr int64_t kGroups = 8, kGroupRank = 32;
// Below this a thread's share costs less than waking it.
constexpr int64_t kGrainBytes = 32768;

struct Basis final : SubspaceBasis {
  Basis(Buffer stored, int64_t n_in, Deviation e)
      : SubspaceBasis(stored.view().rows(), n_in,
                      stored.view().rows() * gemm::padded_to_line(n_in, stored.view().dtype()) *
                              element_bytes(stored.view().dtype()) +
                          (e.overlaps ? e.overlaps->bytes() : 0)),
        vectors(std::move(stored)),
        deviation(std::move(e)),
        n_groups(std::max(kGroups, rank() / (kGroups * kGroupRank) * kGroups)) {}
  DType dtype() const { return vectors.view().dtype(); }
  int64_t padded() const { return gemm::padded_to_line(n_in(), dtype()); }  // elements of a vector

  // V^T as a matrix (rank, n_in), and V as one (n_in, rank).
  MatrixSource directions() const {
    MatrixSource source{.n_out = rank(), .n_in = n_in(), .read_rows = {}, .bias = {}};
    source.read_rows = [this](int64_t begin, int64_t end, float* out) {
      for (int64_t j = begin; j < end; ++j)
        for (int64_t i = 0; i < n_in(); ++i) *out++ = element(j, i);
    };
    return source;
  }
  MatrixSource transposed() const {
    MatrixSource source{.n_out = n_in(), .n_in = rank(), .read_rows = {}, .bias = {}};
    source.read_rows = [this](int64_t begin, int64_t end, float* out) {
      for (int64_t j = 0; j < rank(); ++j)
        for (int64_t i = begin; i < end; ++i) out[(i - begin) * rank() + j] = element(j, i);
    };
    return source;
  }

  Buffer vectors;  // (rank, stride) compute dtype, zero beyond n_in; see stored_at
  Deviation deviation;
  int64_t n_groups;

 private:
  float element(int64_t j, int64_t i) const {
    return dtype() == DType::kBF16
               ? to_float(vectors.view().row<BFloat16>(j)[gemm::stored_at<BFloat16>(i)])
               : vectors.view().row<float>(j)[i];
  }
};

Buffer store_vectors(std::span<const float> values, int64_t rank, int64_t n_in, DType dtype) {
  SLUICE_CHECK(rank > 0 && static_cast<int64_t>(values.size()) == rank * n_in);
  Buffer stored = host_buffer(dtype, {rank, gemm::vector_stride(n_in, dtype)});
  for (int64_t j = 0; j < rank; ++j)
    for (int64_t i = 0; i < n_in; ++i) {
      const float x = values[static_cast<size_t>(j * n_in + i)];
      if (dtype == DType::kBF16)
        stored.view().row<BFloat16>(j)[gemm::stored_at<BFloat16>(i)] = to_bfloat16(x);
      else
        stored.view().row<float>(j)[i] = x;
    }
  return stored;
}

float missed_share(double all, double rest) {
  if (all == 0) return 0.0f;
  const double share = std::sqrt(rest / all);
  return std::isfinite(share) ? static_cast<float>(share) : 1.0f;
}

// A row as f32, with zeros up to the stride.
void read_padded(const ConstTensor& x, int64_t row, int64_t stride, float* to) {
  const int64_t n = x.row_elements();
  if (x.dtype() == DType::kBF16)
    primitives::widen(x.row<BFloat16>(row), n, to);
  else
    std::copy_n(x.row<float>(row), n, to);
  std::fill(to + n, to + stride, 0.0f);
}

// A row in the order of a direction (stored_at), with zeros up to whole lines.
void store_like_directions(const float* x, int64_t n, float* to) {
  std::copy_n(x, n, to);
  std::fill(to + n, to + gemm::padded_to_line(n, DType::kF32), 0.0f);
}
void store_like_directions(const BFloat16* x, int64_t n, BFloat16* to) {
  constexpr int64_t kLine = gemm::kLineElements<BFloat16>, kHalf = kLine / 2;
  int64_t first = 0;
  for (; first + kLine <= n; first += kLine)
    for (int64_t i = 0; i < kHalf; ++i) {
      to[first + 2 * i] = x[first + i];
      to[first + 2 * i + 1] = x[first + kHalf + i];
    }
  if (first == n) return;
  std::fill_n(to + first, kLine, BFloat16{0});
  for (int64_t i = first; i < n; ++i) to[gemm::stored_at<BFloat16>(i)] = x[i];
}

// h and c of directions [begin, end), which are cut into streams read side by side.
template <typename T>
void multiply_directions(const Basis& basis, int64_t begin, int64_t end, const T* x, double* h,
                         T* c) {
  const auto run = [&](int64_t first, int64_t count, int64_t apart) {
    const T* vectors[gemm::kMaxVectors];
    for (int64_t s = 0; s < count; ++s) vectors[s] = basis.vectors.view().row<T>(first + s * apart);
    double dots[gemm::kMaxVectors];
    gemm::dot_vectors({.vectors = vectors, .count = count, .n = basis.padded()}, x, dots);
    for (int64_t s = 0; s < count; ++s) {
      h[first + s * apart] = dots[s];
      c[first + s * apart] = from_float<T>(static_cast<float>(dots[s]));
    }
  };
  const int64_t length = (end - begin) / gemm::kMaxVectors,
                rest = (end - begin) % gemm::kMaxVectors;
  for (int64_t i = 0; i < length; ++i) run(begin + i, gemm::kMaxVectors, length);
  if (rest > 0) run(end - rest, rest, 1);
}

// ||x - V c||^2 by its definition; V comes from a cache.
template <typename T>
double explicit_rest(const Basis& basis, const float* x, const T* c) {
  const int64_t stride = basis.padded(), n_groups = basis.n_groups;
  thread_local std::vector<float> scratch;
  scratch.resize(std::max(scratch.size(), static_cast<size_t>(n_groups * stride)));
  float* parts = scratch.data();
  const int64_t grain = 1 + kGrainBytes * n_groups / basis.bytes();
  parallel_for(n_groups, grain, [&](int64_t first, int64_t last) {
    for (int64_t g = first; g < last; ++g) {
      const int64_t begin = basis.rank() * g / n_groups, end = basis.rank() * (g + 1) / n_groups;
      std::fill_n(parts + g * stride, stride, 0.0f);
      for (int64_t j = begin; j < end; j += gemm::kMaxVectors) {
        const int64_t count = std::min(gemm::kMaxVectors, end - j);
        const T* vectors[gemm::kMaxVectors];
        for (int64_t i = 0; i < count; ++i) vectors[i] = basis.vectors.view().row<T>(j + i);
        gemm::mix_vectors({.vectors = vectors, .count = count, .n = stride}, c + j,
                          parts + g * stride);
      }
    }
  });
  return gemm::squared_distance(x, parts, stride, n_groups, stride);
}

// c.(E c).
template <typename T>
double overlap_of(const Overlaps& overlaps, const T* c, int64_t rank) {
  thread_local std::vector<T> stored;
  thread_local std::vector<double> parts;
  stored.resize(std::max(stored.size(), static_cast<size_t>(rank + gemm::kLineElements<T>)));
  parts.resize(static_cast<size_t>(overlaps.n_blocks()));
  T* from = stored.data();
  double* to = parts.data();
  store_like_directions(c, rank, from);
  const int64_t grain = 1 + kGrainBytes * overlaps.n_blocks() / overlaps.bytes();
  parallel_for(overlaps.n_blocks(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) to[b] = overlaps.block(b, from);
  });
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

template <typename T>
void project_row(const ProjectArgs& args, const Basis& basis, int64_t row) {
  const int64_t stride = basis.padded(), rank = basis.rank();
  thread_local std::vector<float> x_scratch;
  thread_local std::vector<T> stored_scratch;
  thread_local std::vector<double> h_scratch;
  x_scratch.resize(std::max(x_scratch.size(), static_cast<size_t>(stride)));
  stored_scratch.resize(std::max(stored_scratch.size(), static_cast<size_t>(stride)));
  h_scratch.resize(std::max(h_scratch.size(), static_cast<size_t>(rank)));
  float* x = x_scratch.data();
  T* stored = stored_scratch.data();
  double* h = h_scratch.data();
  T* c = args.coordinates.row<T>(row);
  read_padded(args.x, row, stride, x);
  store_like_directions(args.x.row<T>(row), basis.n_in(), stored);
  const int64_t grain = 1 + kGrainBytes * rank / basis.bytes();
  parallel_for(rank, grain, [&](int64_t begin, int64_t end) {
    multiply_directions(basis, begin, end, stored, h, c);
  });
  const double all = gemm::squared_norm(x, stride);
  double inside = 0;
  for (int64_t j = 0; j < rank; ++j) {
    const double cj = to_float(c[j]);
    inside += cj * (2 * h[j] - cj - cj * basis.deviation.diagonal[static_cast<size_t>(j)]);
  }
  double rest = all - inside;
  if (basis.deviation.overlaps) rest += overlap_of(*basis.deviation.overlaps, c, rank);
  if (!(rest >= basis.deviation.cancels * all)) rest = explicit_rest(basis, x, c);
  args.residuals[static_cast<size_t>(row)] = missed_share(all, rest);
}

void project_packed(const ProjectArgs& args, const Basis& basis) {
  gemm::make_linear(basis.directions(), basis.dtype())
      ->run({.weights = nullptr, .x = args.x, .out = args.coordinates});
  const auto back = gemm::make_linear(basis.transposed(), basis.dtype());
  const int64_t stride = basis.padded();
  const Buffer sums = host_buffer(DType::kF32, {kRowBlock, stride});
  for (int64_t first = 0; first < args.x.rows(); first += kRowBlock) {
    const int64_t n_rows = std::min(kRowBlock, args.x.rows() - first);
    back->run({.weights = nullptr,
               .x = args.coordinates.rows_from(first, n_rows),
               .out = sums.view().rows_from(0, n_rows).columns_from(0, basis.n_in())});
    parallel_for(n_rows, 1 + kGrainBytes / stride, [&](int64_t begin, int64_t end) {
      std::vector<float> x(static_cast<size_t>(stride));
      for (int64_t i = begin; i < end; ++i) {
        read_padded(args.x, first + i, stride, x.data());
        args.residuals[static_cast<size_t>(first + i)] = missed_share(
            gemm::squared_norm(x.data(), stride),
            gemm::squared_distance(x.data(), sums.view().row<float>(i), stride, 1, stride));
      }
    });
  }
}

}  // namespace

std::unique_ptr<SubspaceBasis> make_basis(std::span<const float> vectors, int64_t rank,
                                          int64_t n_in, DType dtype) {
  Buffer stored = store_vectors(vectors, rank, n_in, dtype);
  Deviation deviation = deviation_of(stored.view(), n_in);
  return std::make_unique<Basis>(std::move(stored), n_in, std::move(deviation));
}

void project(const ProjectArgs& args) {
  const auto& basis = dynamic_cast<const Basis&>(*args.basis);
  SLUICE_CHECK(args.x.row_elements() == basis.n_in() && args.x.dtype() == basis.dtype());
  SLUICE_CHECK(args.coordinates.row_elements() == basis.rank());
  SLUICE_CHECK(args.coordinates.dtype() == basis.dtype());
  SLUICE_CHECK(args.coordinates.rows() == args.x.rows());
  SLUICE_CHECK(static_cast<int64_t>(args.residuals.size()) == args.x.rows());
  if (args.x.rows() >= kPackedRows) return project_packed(args, basis);
  for (int64_t row = 0; row < args.x.rows(); ++row) {
    if (basis.dtype() == DType::kBF16)
      project_row<BFloat16>(args, basis, row);
    else
      project_row<float>(args, basis, row);
  }
}

MatrixSource image_source(const MatrixSource& source, const SubspaceBasis& basis) {
  SLUICE_CHECK(source.n_in == basis.n_in());
  const std::shared_ptr<const gemm::Linear> product =
      gemm::make_packed_linear(dynamic_cast<const Basis&>(basis).directions(), DType::kF32);
  MatrixSource image{
      .n_out = source.n_out, .n_in = basis.rank(), .read_rows = {}, .bias = source.bias};
  image.read_rows = [&source, product](int64_t begin, int64_t end, float* out) {
    std::vector<float> rows(static_cast<size_t>((end - begin) * source.n_in));
    source.read_rows(begin, end, rows.data());
    product->run({.weights = nullptr,
                  .x = ConstTensor(rows.data(), DType::kF32, {end - begin, source.n_in}),
                  .out = Tensor(out, DType::kF32, {end - begin, product->n_out()})});
  };
  return image;
}

}  // namespace sluice::impl::cpu::subspace
