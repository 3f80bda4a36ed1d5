// Projection on a basis, and the share of x that the coordinates c miss. One row: a pass over V at
// the speed of memory gives h = V^T x, and most residuals follow from it without a second one:
//
//   ||x - V c||^2 = ||x||^2 - 2 c.h + c.c + c.(E c),   E = V^T V - 1,
//
// where E is what the vectors, as stored, are short of orthonormal. Small residuals would cancel;
// below kCancels they are computed as they are defined, from x - V c. Many rows: two packed
// products.
//
// What the formula errs by, in parts of ||x||^2: sums are float64 but for the products within
// kDotLines lines (columns_simd.h), which are float32 chains of m <= 32 additions. An addition errs
// by up to u = 2^-24 of its partial sum p, by u / sqrt(3) in the mean square. |p| is at most
// ||v_b|| ||x_b|| over the elements b of a chain, so the errors of c.h, taken as independent, come
// to u / sqrt(3) sqrt(m sum_b ||v_b||^2 ||x_b||^2) ||c||: 2e-7 if directions and x lay within one
// chain, and sqrt(m / n) of that for directions spread over n inputs. Twice that over
// 2 sqrt(kCancels) = 0.063 is 6e-6 of ||x|| for the former, which is within the 1e-5 that
// ProjectArgs promises, and below 2e-6 for the latter from n = 320 on.

#include "backend/cpu/subspace.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "backend/cpu/columns_simd.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/rows.h"
#include "core/threads.h"

namespace sluice::cpu {
namespace {

// From here on packing V, twice, costs less than passing over it row by row.
constexpr int64_t kPackedRows = 32;
// Rows whose V c is held at once.
constexpr int64_t kRowBlock = 128;
// Directions of a group share one partial sum of V c. Groups depend on the rank only, so that the
// number of threads does not change a bit; 8 of them divide among most numbers of threads, and in
// groups of 32 directions the partial sums are a small part of what is read.
constexpr int64_t kGroups = 8, kGroupRank = 32;
// Of ||x||^2, from docs/algorithm.md section 4.
constexpr double kCancels = 1e-3;
// An E that is, beside its diagonal, of smaller norm changes no residual beyond kCancels by more
// than half of 1e-5: 0.063 times that. In f32 most are; in bf16, a thousand times larger, none.
constexpr double kNegligible = 3e-7;
// Below this a thread's share costs less than waking it.
constexpr int64_t kGrainBytes = 32768;

// E beside its diagonal, for c.(E c), with every pair once: row i holds 2 E_ij at j > i, zeros
// before, from the line that i stands in. Blocks of kMaxVectors rows begin at one element, so they
// are as long.
class Overlaps {
 public:
  Overlaps(int64_t rank, DType dtype)
      : rank_(rank), padded_(padded_to_line(rank, dtype)), line_(padded_to_line(1, dtype)) {
    int64_t n = 0;
    for (int64_t i = 0; i < rank; ++i) n += length(i);
    values_ = host_buffer(dtype, {n});
  }
  int64_t bytes() const {
    return values_.view().shape().numel() * element_bytes(values_.view().dtype());
  }
  int64_t n_blocks() const { return (rank_ + kMaxVectors - 1) / kMaxVectors; }

  template <typename T>
  void set(int64_t i, int64_t j, double value) const {
    row<T>(i)[stored_at<T>(j - first(i))] = from_float<T>(static_cast<float>(value));
  }
  // What rows of a block add to c.(E c); c stored as a vector is.
  template <typename T>
  double block(int64_t b, const T* c) const {
    const int64_t i = b * kMaxVectors, count = std::min(kMaxVectors, rank_ - i);
    const T* rows[kMaxVectors];
    for (int64_t k = 0; k < count; ++k) rows[k] = row<T>(i + k);
    double dots[kMaxVectors], sum = 0;
    dot_vectors({.vectors = rows, .count = count, .n = length(i)}, c + first(i), dots);
    for (int64_t k = 0; k < count; ++k) sum += to_float(c[stored_at<T>(i + k)]) * dots[k];
    return sum;
  }

 private:
  int64_t first(int64_t i) const { return i / line_ * line_; }
  int64_t length(int64_t i) const { return padded_ - first(i); }
  // Rows of the lines before have padded_, padded_ - line_, ... elements.
  template <typename T>
  T* row(int64_t i) const {
    const int64_t lines = i / line_, rows_before = first(i);
    return values_.view().data<T>() + rows_before * padded_ -
           rows_before * line_ * (lines - 1) / 2 + i % line_ * length(i);
  }
  int64_t rank_, padded_, line_;
  Buffer values_;
};

// What the formula needs beside V. Rounding a number S of E to bf16 errs by 2^-9 / sqrt(3) of it in
// the mean square, so c.(E c) errs by that of the largest S, however c lies; the least residual the
// formula may serve is where this comes to half of 1e-5. The diagonal, large where a direction is
// nearly an axis, is not rounded.
struct Deviation {
  std::vector<float> diagonal;       // (rank)
  std::optional<Overlaps> overlaps;  // none where they are negligible
  double cancels = kCancels;         // of ||x||^2
};

struct Basis final : SubspaceBasis {
  Basis(Buffer stored, int64_t n_in, Deviation e)
      : SubspaceBasis(stored.view().rows(), n_in,
                      stored.view().rows() * padded_to_line(n_in, stored.view().dtype()) *
                              element_bytes(stored.view().dtype()) +
                          (e.overlaps ? e.overlaps->bytes() : 0)),
        vectors(std::move(stored)),
        deviation(std::move(e)),
        n_groups(std::max(kGroups, rank() / (kGroups * kGroupRank) * kGroups)) {}
  DType dtype() const { return vectors.view().dtype(); }
  int64_t padded() const { return padded_to_line(n_in(), dtype()); }  // elements of a vector

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
               ? to_float(vectors.view().row<BFloat16>(j)[stored_at<BFloat16>(i)])
               : vectors.view().row<float>(j)[i];
  }
};

Buffer store_vectors(std::span<const float> values, int64_t rank, int64_t n_in, DType dtype) {
  SLUICE_CHECK(rank > 0 && static_cast<int64_t>(values.size()) == rank * n_in);
  Buffer stored = host_buffer(dtype, {rank, vector_stride(n_in, dtype)});
  for (int64_t j = 0; j < rank; ++j)
    for (int64_t i = 0; i < n_in; ++i) {
      const float x = values[static_cast<size_t>(j * n_in + i)];
      if (dtype == DType::kBF16)
        stored.view().row<BFloat16>(j)[stored_at<BFloat16>(i)] = to_bfloat16(x);
      else
        stored.view().row<float>(j)[i] = x;
    }
  return stored;
}

// A block of E beside the diagonal: its squared norm and its largest stored number.
struct Extent {
  double squares = 0, largest = 0;
};
template <typename T>
Extent measure_block(const Tensor& vectors, int64_t n, int64_t b, const Overlaps& to,
                     float* diagonal) {
  const int64_t first = b * kMaxVectors, count = std::min(kMaxVectors, vectors.rows() - first);
  const T* rows[kMaxVectors];
  for (int64_t k = 0; k < count; ++k) rows[k] = vectors.row<T>(first + k);
  Extent extent;
  for (int64_t j = first; j < vectors.rows(); ++j) {
    double dots[kMaxVectors];
    dot_vectors({.vectors = rows, .count = count, .n = n}, vectors.row<T>(j), dots);
    for (int64_t k = 0; k < count && first + k < j; ++k) {
      to.set<T>(first + k, j, 2 * dots[k]);
      extent.squares += 2 * dots[k] * dots[k];
      extent.largest = std::max(extent.largest, std::abs(2 * dots[k]));
    }
    if (j < first + count) diagonal[j] = static_cast<float>(dots[j - first] - 1);
  }
  return extent;
}

template <typename T>
Deviation deviation_of(const Tensor& vectors, int64_t n_in) {
  Overlaps overlaps(vectors.rows(), vectors.dtype());
  Deviation result;
  result.diagonal.resize(static_cast<size_t>(vectors.rows()));
  std::vector<Extent> blocks(static_cast<size_t>(overlaps.n_blocks()));
  const int64_t n = padded_to_line(n_in, vectors.dtype());
  parallel_for(overlaps.n_blocks(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      blocks[static_cast<size_t>(b)] =
          measure_block<T>(vectors, n, b, overlaps, result.diagonal.data());
  });
  Extent all;
  for (const Extent& block : blocks) {
    all.squares += block.squares;
    all.largest = std::max(all.largest, block.largest);
  }
  if (std::sqrt(all.squares) <= kNegligible) return result;
  const double unit = sizeof(T) == 2 ? 0x1p-9 : 0x1p-24;
  const double least = unit / std::sqrt(3) * all.largest / 1e-5;  // error / (2 * 5e-6)
  result.cancels = std::max(kCancels, least * least);
  result.overlaps = std::move(overlaps);
  return result;
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
    widen(x.row<BFloat16>(row), n, to);
  else
    std::copy_n(x.row<float>(row), n, to);
  std::fill(to + n, to + stride, 0.0f);
}

// A row in the order of a direction (stored_at), with zeros up to whole lines.
void store_like_directions(const float* x, int64_t n, float* to) {
  std::copy_n(x, n, to);
  std::fill(to + n, to + padded_to_line(n, DType::kF32), 0.0f);
}
void store_like_directions(const BFloat16* x, int64_t n, BFloat16* to) {
  constexpr int64_t kLine = kLineElements<BFloat16>, kHalf = kLine / 2;
  int64_t first = 0;
  for (; first + kLine <= n; first += kLine)
    for (int64_t i = 0; i < kHalf; ++i) {
      to[first + 2 * i] = x[first + i];
      to[first + 2 * i + 1] = x[first + kHalf + i];
    }
  if (first == n) return;
  std::fill_n(to + first, kLine, BFloat16{0});
  for (int64_t i = first; i < n; ++i) to[stored_at<BFloat16>(i)] = x[i];
}

// h and c of directions [begin, end), which are cut into streams read side by side.
template <typename T>
void multiply_directions(const Basis& basis, int64_t begin, int64_t end, const T* x, double* h,
                         T* c) {
  const auto run = [&](int64_t first, int64_t count, int64_t apart) {
    const T* vectors[kMaxVectors];
    for (int64_t s = 0; s < count; ++s) vectors[s] = basis.vectors.view().row<T>(first + s * apart);
    double dots[kMaxVectors];
    dot_vectors({.vectors = vectors, .count = count, .n = basis.padded()}, x, dots);
    for (int64_t s = 0; s < count; ++s) {
      h[first + s * apart] = dots[s];
      c[first + s * apart] = from_float<T>(static_cast<float>(dots[s]));
    }
  };
  const int64_t length = (end - begin) / kMaxVectors, rest = (end - begin) % kMaxVectors;
  for (int64_t i = 0; i < length; ++i) run(begin + i, kMaxVectors, length);
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
      for (int64_t j = begin; j < end; j += kMaxVectors) {
        const int64_t count = std::min(kMaxVectors, end - j);
        const T* vectors[kMaxVectors];
        for (int64_t i = 0; i < count; ++i) vectors[i] = basis.vectors.view().row<T>(j + i);
        mix_vectors({.vectors = vectors, .count = count, .n = stride}, c + j, parts + g * stride);
      }
    }
  });
  return squared_distance(x, parts, stride, n_groups, stride);
}

// c.(E c).
template <typename T>
double overlap_of(const Overlaps& overlaps, const T* c, int64_t rank) {
  thread_local std::vector<T> stored;
  thread_local std::vector<double> parts;
  stored.resize(std::max(stored.size(), static_cast<size_t>(rank + kLineElements<T>)));
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
  const double all = squared_norm(x, stride);
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
  make_linear(basis.directions(), basis.dtype())
      ->run({.weights = nullptr, .x = args.x, .out = args.coordinates});
  const auto back = make_linear(basis.transposed(), basis.dtype());
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
        args.residuals[static_cast<size_t>(first + i)] =
            missed_share(squared_norm(x.data(), stride),
                         squared_distance(x.data(), sums.view().row<float>(i), stride, 1, stride));
      }
    });
  }
}

}  // namespace

std::unique_ptr<SubspaceBasis> make_basis(std::span<const float> vectors, int64_t rank,
                                          int64_t n_in, DType dtype) {
  Buffer stored = store_vectors(vectors, rank, n_in, dtype);
  Deviation deviation = dtype == DType::kBF16 ? deviation_of<BFloat16>(stored.view(), n_in)
                                              : deviation_of<float>(stored.view(), n_in);
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
  const std::shared_ptr<const CpuLinear> product =
      make_packed_linear(dynamic_cast<const Basis&>(basis).directions(), DType::kF32);
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

}  // namespace sluice::cpu
