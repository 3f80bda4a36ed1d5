#include "backend/cpu/gemm/columns.h"

#include <algorithm>
#include <vector>

#include "backend/cpu/gemm/columns_simd.h"
#include "backend/cpu/gemm/linear.h"
#include "core/threads.h"

namespace sluice::impl::cpu::gemm {
namespace {

// Columns that lie apart are read more slowly than a matrix: each takes as long as this many bytes
// more. On a Neoverse-V1 the shapes of bench/cases/linear.json say 3 to 9 KiB.
constexpr int64_t kColumnCostBytes = 6144;

int64_t bytes_of_column(int64_t n_out, DType dtype) {
  return padded_to_line(n_out, dtype) * element_bytes(dtype);
}
double share_worth_it(int64_t column_bytes) {
  return static_cast<double>(column_bytes) / static_cast<double>(column_bytes + kColumnCostBytes);
}

struct Columns final : ColumnWeights {
  Columns(MatrixSource source, DType dtype)
      : ColumnWeights(source.n_out, source.n_in, bytes_of_column(source.n_out, dtype),
                      share_worth_it(bytes_of_column(source.n_out, dtype))),
        columns(host_buffer(dtype, {source.n_in, vector_stride(source.n_out, dtype)})),
        bias(std::move(source.bias)) {
    if (dtype == DType::kBF16)
      transpose<BFloat16>(source);
    else
      transpose<float>(source);
  }

  Buffer columns;           // (n_in, stride) compute dtype, zero beyond n_out; see stored_at
  std::vector<float> bias;  // (n_out), or empty

 private:
  // A line of rows at a time: each thread writes lines of its own.
  template <typename T>
  void transpose(const MatrixSource& source) {
    constexpr int64_t kRows = kLineElements<T>;
    parallel_for((n_out() + kRows - 1) / kRows, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> rows(static_cast<size_t>(kRows * n_in()));
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kRows, n = std::min(kRows, n_out() - first);
        source.read_rows(first, first + n, rows.data());
        for (int64_t k = 0; k < n_in(); ++k) {
          T* to = columns.view().row<T>(k) + first;
          for (int64_t i = 0; i < n; ++i)
            to[stored_at<T>(i)] = from_float<T>(rows[static_cast<size_t>(i * n_in() + k)]);
        }
      }
    });
  }
};

// What x multiplies: its elements other than zero, and their columns.
template <typename T>
struct Terms {
  std::vector<const T*> columns;
  std::vector<T> factors;
  int64_t count = 0;
};

template <typename T>
void collect(const T* x, const Columns& weights, Terms<T>& terms) {
  const auto n = static_cast<size_t>(weights.n_in());
  if (terms.columns.size() < n) {
    terms.columns.resize(n);
    terms.factors.resize(n);
  }
  const T* column = weights.columns.view().data<T>();
  const int64_t stride = weights.columns.view().row_stride();
  size_t count = 0;  // every element is written, and overwritten when it was zero: no branch
  for (size_t k = 0; k < n; ++k, column += stride) {
    terms.columns[count] = column;
    terms.factors[count] = x[k];
    count += to_float(x[k]) != 0 ? 1 : 0;
  }
  terms.count = static_cast<int64_t>(count);
}

// How a row's work is cut: outputs into slices, and the terms of each into parts, whose sums are
// added up. Columns are read best whole, since what lies apart is not fetched ahead, but sums
// should stay in the first cache. It depends on the row alone, not on the number of threads.
struct Cuts {
  Cuts(int64_t n_outputs, int64_t n_terms)
      : n_slices((n_outputs + kSlice - 1) / kSlice),
        n_parts(
            std::clamp<int64_t>(std::min(kPieces / n_slices, n_terms / kPartTerms), 1, kPieces)) {}

  static constexpr int64_t kSlice = 4096;    // outputs, whole lines
  static constexpr int64_t kPieces = 8;      // divide among most numbers of threads
  static constexpr int64_t kPartTerms = 16;  // below, adding up is a part of the work
  int64_t n_slices, n_parts;
};

// Terms [begin, end) times outputs from `column` on.
template <typename T>
void sum_columns(const Terms<T>& terms, int64_t begin, int64_t end, int64_t column, int64_t width,
                 float* sums) {
  std::fill(sums, sums + width, 0.0f);
  for (int64_t first = begin; first < end; first += kMaxVectors) {
    const int64_t count = std::min(kMaxVectors, end - first);
    const T* vectors[kMaxVectors];
    for (int64_t j = 0; j < count; ++j)
      vectors[j] = terms.columns[static_cast<size_t>(first + j)] + column;
    mix_vectors({.vectors = vectors, .count = count, .n = width}, terms.factors.data() + first,
                sums);
  }
}

template <typename T>
void run_row(const LinearArgs& linear, const Columns& weights, const Terms<T>& terms, int64_t row) {
  const int64_t width = padded_to_line(weights.n_out(), weights.columns.view().dtype());
  const Cuts cuts(width, terms.count);
  thread_local std::vector<float> scratch;
  scratch.resize(std::max(scratch.size(), static_cast<size_t>(cuts.n_parts * width)));
  float* sums = scratch.data();  // (n_parts, width)
  const int64_t n_pieces = cuts.n_slices * cuts.n_parts;
  // Below this a thread's share costs less than waking it.
  constexpr int64_t kGrainBytes = 32768;
  const int64_t grain = 1 + kGrainBytes * n_pieces / ((terms.count + 1) * weights.column_bytes());
  parallel_for(n_pieces, grain, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t part = piece / cuts.n_slices, column = piece % cuts.n_slices * Cuts::kSlice;
      sum_columns(terms, terms.count * part / cuts.n_parts, terms.count * (part + 1) / cuts.n_parts,
                  column, std::min(Cuts::kSlice, width - column), sums + part * width + column);
    }
  });
  for (int64_t part = 1; part < cuts.n_parts; ++part)
    for (int64_t i = 0; i < width; ++i) sums[i] += sums[part * width + i];
  finish_row({.linear = &linear,
              .bias = weights.bias.empty() ? nullptr : weights.bias.data(),
              .row = row,
              .column = 0,
              .n = weights.n_out(),
              .sums = sums});
}

template <typename T>
void run(const LinearColumnsArgs& args, const Columns& weights) {
  const LinearArgs linear{.weights = nullptr,
                          .x = args.x,
                          .activation = args.activation,
                          .accumulate = args.accumulate,
                          .out = args.out};
  thread_local Terms<T> terms;
  for (int64_t row = 0; row < args.x.rows(); ++row) {
    collect(args.x.row<T>(row), weights, terms);
    run_row(linear, weights, terms, row);
  }
}

}  // namespace

std::unique_ptr<ColumnWeights> pack_columns(MatrixSource source, DType dtype) {
  return std::make_unique<Columns>(std::move(source), dtype);
}

void linear_columns(const LinearColumnsArgs& args) {
  const auto& weights = dynamic_cast<const Columns&>(*args.weights);
  SLUICE_CHECK(args.x.row_elements() == weights.n_in());
  SLUICE_CHECK(args.x.dtype() == weights.columns.view().dtype());
  SLUICE_CHECK(args.out.row_elements() == weights.n_out());
  SLUICE_CHECK(args.x.rows() == args.out.rows());
  SLUICE_CHECK(!args.accumulate ||
               (args.activation == Activation::kNone && args.out.dtype() == DType::kF32));
  if (weights.columns.view().dtype() == DType::kBF16)
    run<BFloat16>(args, weights);
  else
    run<float>(args, weights);
}

}  // namespace sluice::impl::cpu::gemm
