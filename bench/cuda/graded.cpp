// A product of one row by the columns of its elements that are not zero, as a ReLU leaves them.
//
// Keys: "mode": "graded", "n_in", "n_out", "kept": shares of the columns.

#include <fmt/format.h>

#include "backend/cuda/elementwise/elements.h"
#include "backend/cuda/subspace/subspace.h"
#include "cuda/case.h"
#include "cuda/timing.h"

namespace sluice::impl::bench {
namespace {

using cuda::DeviceArray;
using cuda::linear::DeviceMatrix;
using cuda::linear::DeviceWeights;

constexpr int kCopies = 2;  // of the weights
constexpr int kRows = 10;   // other columns every time, so that they do not come from a cache

class GradedLayer {
 public:
  explicit GradedLayer(CudaCase& c)
      : c_(c),
        context_(c.context()),
        multiplier_(c.context()),
        n_in_(c.keys().require_int("n_in", 1, kMostWidth)),
        n_out_(c.keys().require_int("n_out", 1, kMostWidth)),
        out_(context_, DType::kF32, 1, n_out_) {
    const MatrixSource source{.n_out = n_out_,
                              .n_in = n_in_,
                              .read_rows =
                                  [n = n_in_](int64_t begin, int64_t end, float* to) {
                                    for (int64_t i = begin * n; i < end * n; ++i)
                                      *to++ = static_cast<float>(i * 37 % 101) / 101 - 0.5f;
                                  },
                              .bias = {}};
    for (uint32_t i = 0; i < kCopies; ++i) {
      columns_.push_back(cuda::subspace::pack_columns(context_, source, DType::kBF16));
      dense_.push_back(std::make_unique<DeviceWeights>(
          random_matrix(context_, DType::kBF16, n_out_, n_in_, 5u + i),
          cuda::linear::DeviceBias()));
      gates_.push_back(cuda::subspace::make_gate(
          context_, multiplier_,
          {.dense = dense_.back().get(), .columns = columns_.back().get(), .most_kept = 0.75}));
      if (gates_.back() == nullptr) throw Error(c.name() + ": the device has no such gate");
    }
  }

  int64_t n_in() const { return n_in_; }
  int64_t n_out() const { return n_out_; }

  Timing time_dense() {
    const DeviceMatrix x = random_matrix(context_, DType::kBF16, 1, n_in_, 9);
    return time_recorded(*context_, c_.rounds(kUsualRounds), 2 * kCopies, [&](int round) {
      multiplier_.run(dense_[static_cast<size_t>(round % kCopies)]->matrix, {},
                      {.weights = nullptr, .x = x.rows, .accumulate = true, .out = out_.rows});
    });
  }

  Timing time_graded(double share) {
    std::vector<float> some(static_cast<size_t>(kRows * n_in_));
    for (int row = 0; row < kRows; ++row)
      for (double i = row / share / kRows; i < static_cast<double>(n_in_); i += 1 / share)
        some[static_cast<size_t>(row * n_in_) + static_cast<size_t>(i)] = 0.7f;
    const DeviceArray<float> wide(context_, std::span<const float>(some));
    const DeviceMatrix x(context_, DType::kBF16, kRows, n_in_);
    cuda::elementwise::convert(
        *context_, ConstTensor(wide.data(), DType::kF32, {kRows, n_in_}, Device::kCuda), x.rows);
    return time_recorded(*context_, c_.rounds(kUsualRounds), kRows * kCopies, [&](int round) {
      RowGate& gate = *gates_[static_cast<size_t>(round % kCopies)];
      gate.forget();
      gate.run({.weights = nullptr,
                .x = x.rows.rows_from(round / kCopies, 1),
                .accumulate = true,
                .out = out_.rows},
               0);
    });
  }

 private:
  CudaCase& c_;
  std::shared_ptr<cuda::Context> context_;
  cuda::linear::Multiplier multiplier_;
  int64_t n_in_, n_out_;
  DeviceMatrix out_;
  std::vector<std::unique_ptr<cuda::subspace::DeviceColumns>> columns_;
  std::vector<std::unique_ptr<DeviceWeights>> dense_;
  std::vector<std::unique_ptr<RowGate>> gates_;
};

}  // namespace

void run_graded(CudaCase& c) {
  const std::vector<double> kept = shares(c.keys(), "kept");
  GradedLayer layer(c);
  const Timing dense = layer.time_dense();
  const auto record = [&](const std::string& mode, const Timing& t) {
    c.record(fmt::format("{}x{}", layer.n_in(), layer.n_out()), mode, t,
             {{"n_in", layer.n_in()},
              {"n_out", layer.n_out()},
              {"speedup_vs_dense", dense.median / t.median}});
  };
  record("dense", dense);
  c.table().say(fmt::format("one row, {} -> {}, zeros left out; dense {:.1f} us", layer.n_in(),
                            layer.n_out(), 1e3 * dense.median));
  c.table().columns({"columns kept", "us", "spread", "speed-up"});
  for (const double share : kept) {
    const Timing t = layer.time_graded(share);
    c.table().row({fmt::format("{:.0f}%", 100 * share), fmt::format("{:.1f}", 1e3 * t.median),
                   fmt::format("{:.2f}", t.spread),
                   fmt::format("{:.1f}x", dense.median / t.median)});
    record(fmt::format("lossless, {:.0f}% kept", 100 * share), t);
  }
}

}  // namespace sluice::impl::bench
