// What a gate and a graded product of one row are made of, each piece alone.
//
// Keys: "mode": "parts", "n_in", "n_out", "rank", "epsilons": of grading, "kept": shares of the
// columns.

#include <fmt/format.h>

#include "backend/cuda/elementwise/elements.h"
#include "backend/cuda/subspace/subspace.h"
#include "cuda/case.h"
#include "cuda/timing.h"

namespace sluice::impl::bench {
namespace {

using cuda::DeviceArray;
using cuda::linear::DeviceMatrix;

// Copies of the dense weights, and of what is smaller: more than the second-level cache holds.
constexpr int kDense = 2, kSmall = 16;

class Parts {
 public:
  explicit Parts(CudaCase& c)
      : c_(c),
        context_(c.context()),
        multiplier_(c.context()),
        n_in_(c.keys().require_int("n_in", 1, kMostWidth)),
        n_out_(c.keys().require_int("n_out", 1, kMostWidth)),
        rank_(c.keys().require_int("rank", 1, n_in_)),
        x_(random_matrix(context_, DType::kBF16, 1, n_in_, 1)),
        coordinates_(context_, DType::kBF16, 1, rank_),
        graded_(context_, DType::kBF16, 1, n_in_),
        out_(context_, DType::kBF16, 1, n_out_) {}

  int64_t n_in() const { return n_in_; }
  int64_t n_out() const { return n_out_; }

  void products() {
    std::vector<DeviceMatrix> images, dense;
    for (uint32_t i = 0; i < kSmall; ++i)
      images.push_back(random_matrix(context_, DType::kBF16, n_out_, rank_, 3u + i));
    for (uint32_t i = 0; i < kDense; ++i)
      dense.push_back(random_matrix(context_, DType::kBF16, n_out_, n_in_, 3u + i));
    time("dense product", [&](int round) {
      multiplier_.run(dense[static_cast<size_t>(round % kDense)], {},
                      {.weights = nullptr, .x = x_.rows, .out = out_.rows});
    });
    time("product with the image", [&](int round) {
      multiplier_.run(images[static_cast<size_t>(round % kSmall)], {},
                      {.weights = nullptr, .x = coordinates_.rows, .out = out_.rows});
    });
  }

  void projection() {
    const std::vector<float> vectors(static_cast<size_t>(rank_ * n_in_), 0.01f);
    std::vector<std::unique_ptr<cuda::subspace::DeviceBasis>> bases;
    for (int i = 0; i < kSmall; ++i)
      bases.push_back(cuda::subspace::make_basis(context_, vectors, rank_, n_in_, DType::kBF16));
    std::vector<float> residuals(1);
    time("projection, back on the host", [&](int round) {
      cuda::subspace::project(context_, multiplier_,
                              {.basis = bases[static_cast<size_t>(round % kSmall)].get(),
                               .x = x_.rows,
                               .coordinates = coordinates_.rows,
                               .residuals = residuals});
    });
  }

  void grading(double epsilon) {
    std::vector<int32_t> kept(1);
    time(fmt::format("grading with epsilon {}", epsilon), [&](int) {
      cuda::subspace::grade(
          context_, {.x = x_.rows, .epsilon = epsilon, .graded = graded_.rows, .kept = kept});
    });
  }

  void columns(const std::vector<double>& kept) {
    const MatrixSource source{
        .n_out = n_out_,
        .n_in = n_in_,
        .read_rows = [n = n_in_](int64_t begin, int64_t end,
                                 float* to) { std::fill_n(to, (end - begin) * n, 0.5f); },
        .bias = {}};
    std::vector<std::unique_ptr<cuda::subspace::DeviceColumns>> weights;
    for (int i = 0; i < kDense; ++i)
      weights.push_back(cuda::subspace::pack_columns(context_, source, DType::kBF16));
    for (const double share : kept) {
      std::vector<float> some(static_cast<size_t>(n_in_));
      for (double i = 0; i < static_cast<double>(n_in_); i += 1 / share)
        some[static_cast<size_t>(i)] = 1;
      const DeviceArray<float> wide(context_, std::span<const float>(some));
      cuda::elementwise::convert(*context_,
                                 ConstTensor(wide.data(), DType::kF32, {1, n_in_}, Device::kCuda),
                                 graded_.rows);
      time(fmt::format("product by {:.0f}% of the columns", 100 * share), [&](int round) {
        cuda::subspace::linear_columns(
            context_, {.weights = weights[static_cast<size_t>(round % kDense)].get(),
                       .x = graded_.rows,
                       .out = out_.rows});
      });
    }
  }

 private:
  void time(const std::string& name, const std::function<void(int)>& run) {
    const Timing t = time_runs(*context_, c_.rounds(kUsualRounds), run);
    c_.table().row({name, fmt::format("{:.1f}", 1e3 * t.median), fmt::format("{:.2f}", t.spread)});
    c_.record(fmt::format("{}x{}", n_in_, n_out_), name, t,
              {{"n_in", n_in_}, {"n_out", n_out_}, {"rank", rank_}});
  }

  CudaCase& c_;
  std::shared_ptr<cuda::Context> context_;
  cuda::linear::Multiplier multiplier_;
  int64_t n_in_, n_out_, rank_;
  DeviceMatrix x_, coordinates_, graded_, out_;
};

}  // namespace

void run_linear_parts(CudaCase& c) {
  Parts parts(c);
  const std::vector<double> kept = shares(c.keys(), "kept");
  c.table().columns(
      {fmt::format("one row, {} -> {}", parts.n_in(), parts.n_out()), "us", "spread"});
  parts.products();
  parts.projection();
  for (const double epsilon : c.keys().floats("epsilons")) parts.grading(epsilon);
  parts.columns(kept);
}

}  // namespace sluice::impl::bench
