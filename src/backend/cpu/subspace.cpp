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
// An E of smaller norm changes no residual beyond kCancels by more than half of 1e-5: 0.063 times
// that. In f32 most are; in bf16, a thousand times larger, none.
constexpr double kNegligible = 3e-7;
// Below this a thread's share costs less than waking it.
constexpr int64_t kGrainBytes = 32768;

// E for c.(E c) with every pair once: row i holds 2 E_ij at j > i and E_ii, zeros before, from the
// line that i stands in. Blocks of kMaxVectors rows begin at one element, so they are as long.
class Overlaps {
 public:
  explicit Overlaps(int64_t rank) : rank_(rank), padded_(padded_to_line(rank, DType::kF32)) {
    int64_t n = 0;
    for (int64_t i = 0; i < rank; ++i) n += length(i);
    values_ = host_buffer(DType::kF32, {n});
  }
  int64_t bytes() const { return values_.view().shape().numel() * element_bytes(DType::kF32); }
  int64_t n_blocks() const { return (rank_ + kMaxVectors - 1) / kMaxVectors; }
  float* at(int64_t i, int64_t j) const { return row(i) + (j - first(i)); }

  // What rows of a block add to c.(E c); c padded to whole lines.
  double block(int64_t b, const float* c) const {
    const int64_t i = b * kMaxVectors, count = std::min(kMaxVectors, rank_ - i);
    const float* rows[kMaxVectors];
    for (int64_t k = 0; k < count; ++k) rows[k] = row(i + k);
    double dots[kMaxVectors], sum = 0;
    dot_vectors({.vectors = rows, .count = count, .n = length(i)}, c + first(i), dots);
    for (int64_t k = 0; k < count; ++k) sum += c[i + k] * dots[k];
    return sum;
  }

 private:
  static constexpr int64_t kLine = kLineElements<float>;
  static int64_t first(int64_t i) { return i / kLine * kLine; }
  int64_t length(int64_t i) const { return padded_ - first(i); }
  // Lines of rows before this one have padded_, padded_ - kLine, ... elements a row.
  float* row(int64_t i) const {
    const int64_t lines = i / kLine;
    return values_.view().data<float>() +
           kLine * (lines * padded_ - kLine * lines * (lines - 1) / 2) + i % kLine * length(i);
  }
  int64_t rank_, padded_;
  Buffer values_;
};

struct Basis final : SubspaceBasis {
  Basis(Buffer stored, int64_t n_in, std::optional<Overlaps> between)
      : SubspaceBasis(stored.view().rows(), n_in,
                      stored.view().shape().numel() * element_bytes(stored.view().dtype()) +
                          (between ? between->bytes() : 0)),
        vectors(std::move(stored)),
        overlaps(std::move(between)),
        n_groups(std::max(kGroups, rank() / (kGroups * kGroupRank) * kGroups)) {}
  DType dtype() const { return vectors.view().dtype(); }
  int64_t stride() const { return vectors.view().row_stride(); }

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
  std::optional<Overlaps> overlaps;  // none where they are negligible
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
  Buffer stored = host_buffer(dtype, {rank, padded_to_line(n_in, dtype)});
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

template <typename T>
std::optional<Overlaps> overlaps_of(const Tensor& vectors) {
  Overlaps overlaps(vectors.rows());
  std::vector<double> squares(static_cast<size_t>(overlaps.n_blocks()));
  parallel_for(overlaps.n_blocks(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t i = b * kMaxVectors, count = std::min(kMaxVectors, vectors.rows() - i);
      const T* rows[kMaxVectors];
      for (int64_t k = 0; k < count; ++k) rows[k] = vectors.row<T>(i + k);
      for (int64_t j = i; j < vectors.rows(); ++j) {
        double dots[kMaxVectors];
        dot_vectors({.vectors = rows, .count = count, .n = vectors.row_stride()}, vectors.row<T>(j),
                    dots);
        for (int64_t k = 0; k < count && i + k <= j; ++k) {
          const double e = i + k == j ? dots[k] - 1 : dots[k], weight = i + k == j ? 1 : 2;
          *overlaps.at(i + k, j) = static_cast<float>(weight * e);
          squares[static_cast<size_t>(b)] += weight * e * e;
        }
      }
    }
  });
  const double norm = std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
  if (norm <= kNegligible) return std::nullopt;
  return overlaps;
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
    dot_vectors({.vectors = vectors, .count = count, .n = basis.stride()}, x, dots);
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
  const int64_t stride = basis.stride(), n_groups = basis.n_groups;
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
  thread_local std::vector<float> padded;
  thread_local std::vector<double> parts;
  padded.assign(static_cast<size_t>(padded_to_line(rank, DType::kF32)), 0.0f);
  parts.resize(static_cast<size_t>(overlaps.n_blocks()));
  for (int64_t j = 0; j < rank; ++j) padded[static_cast<size_t>(j)] = to_float(c[j]);
  const float* from = padded.data();
  double* to = parts.data();
  const int64_t grain = 1 + kGrainBytes * overlaps.n_blocks() / overlaps.bytes();
  parallel_for(overlaps.n_blocks(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) to[b] = overlaps.block(b, from);
  });
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

template <typename T>
void project_row(const ProjectArgs& args, const Basis& basis, int64_t row) {
  const int64_t stride = basis.stride(), rank = basis.rank();
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
  for (int64_t j = 0; j < rank; ++j) inside += to_float(c[j]) * (2 * h[j] - to_float(c[j]));
  double rest = all - inside;
  if (basis.overlaps) rest += overlap_of(*basis.overlaps, c, rank);
  if (!(rest >= kCancels * all)) rest = explicit_rest(basis, x, c);
  args.residuals[static_cast<size_t>(row)] = missed_share(all, rest);
}

void project_packed(const ProjectArgs& args, const Basis& basis) {
  make_linear(basis.directions(), basis.dtype())
      ->run({.weights = nullptr, .x = args.x, .out = args.coordinates});
  const auto back = make_linear(basis.transposed(), basis.dtype());
  const int64_t stride = basis.stride();
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
  auto overlaps = dtype == DType::kBF16 ? overlaps_of<BFloat16>(stored.view())
                                        : overlaps_of<float>(stored.view());
  return std::make_unique<Basis>(std::move(stored), n_in, std::move(overlaps));
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
