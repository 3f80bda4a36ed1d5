#include "backend/cpu/columns.h"

#include <algorithm>
#include <vector>

#include "backend/cpu/columns_simd.h"
#include "backend/cpu/linear.h"
#include "core/threads.h"

namespace sluice::cpu {
namespace {

struct Columns final : ColumnWeights {
  Columns(MatrixSource source, DType dtype)
      : ColumnWeights(source.n_out, source.n_in,
                      padded_to_line(source.n_out, dtype) * element_bytes(dtype)),
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

// Outputs [begin, end), whole lines.
template <typename T>
void sum_columns(const Terms<T>& terms, int64_t begin, int64_t end, float* sums) {
  std::fill(sums, sums + (end - begin), 0.0f);
  for (int64_t first = 0; first < terms.count; first += kMaxVectors) {
    const int64_t count = std::min(kMaxVectors, terms.count - first);
    const T* vectors[kMaxVectors];
    for (int64_t j = 0; j < count; ++j)
      vectors[j] = terms.columns[static_cast<size_t>(first + j)] + begin;
    mix_vectors({.vectors = vectors, .count = count, .n = end - begin},
                terms.factors.data() + first, sums);
  }
}

template <typename T>
void run(const LinearColumnsArgs& args, const Columns& weights) {
  const LinearArgs linear{.weights = nullptr,
                          .x = args.x,
                          .activation = args.activation,
                          .accumulate = args.accumulate,
                          .out = args.out};
  thread_local Terms<T> scratch;
  Terms<T>& terms = scratch;  // of this thread, shared with those that help
  const int64_t n_out = weights.n_out();
  constexpr int64_t kLine = kLineElements<T>;
  for (int64_t row = 0; row < args.x.rows(); ++row) {
    collect(args.x.row<T>(row), weights, terms);
    // Below this a thread's share costs less than waking it.
    constexpr int64_t kGrainBytes = 32768;
    const int64_t grain = 1 + kGrainBytes / (kLineBytes * (terms.count + 1));
    parallel_for((n_out + kLine - 1) / kLine, grain, [&](int64_t begin, int64_t end) {
      thread_local std::vector<float> sums;
      sums.resize(std::max(sums.size(), static_cast<size_t>((end - begin) * kLine)));
      sum_columns(terms, begin * kLine, end * kLine, sums.data());
      finish_row({.linear = &linear,
                  .bias = weights.bias.empty() ? nullptr : weights.bias.data(),
                  .row = row,
                  .column = begin * kLine,
                  .n = std::min(end * kLine, n_out) - begin * kLine,
                  .sums = sums.data()});
    });
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

}  // namespace sluice::cpu
