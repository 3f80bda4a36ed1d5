// Linear layers by gates, one token at a time.

#include <fmt/format.h>

#include "backend/cuda/elementwise/elements.h"
#include "backend/cuda/subspace/subspace.h"
#include "timing.h"

namespace sluice::impl::bench {

using cuda::Context;
using cuda::DeviceArray;
using cuda::DeviceMatrix;
using cuda::DeviceWeights;

// Times of decoding one token through a gate of rank 256, or by the columns of a share of its
// input, and of the dense product.
void bench_gates(const std::shared_ptr<Context>& context) {
  constexpr int64_t kIn = 4096, kOut = 16384, kRank = 256;
  cuda::Multiplier multiplier(context);
  fmt::print("\n{:<34} {:>9}\n", "one row, 4096 -> 16384", "us");
  const auto row = [&](const std::string& name, const std::function<void(int)>& run) {
    fmt::print("{:<34} {:>9.1f}\n", name, 1e3 * time_runs(*context, run).median);
  };
  const DeviceMatrix x = random_matrix(context, DType::kBF16, 1, kIn, 1);
  const DeviceMatrix coordinates(context, DType::kBF16, 1, kRank);
  const DeviceMatrix out(context, DType::kBF16, 1, kOut);
  std::vector<DeviceMatrix> images, dense;
  for (int i = 0; i < 16; ++i)
    images.push_back(random_matrix(context, DType::kBF16, kOut, kRank, 3u + i));
  for (int i = 0; i < 2; ++i)
    dense.push_back(random_matrix(context, DType::kBF16, kOut, kIn, 3u + i));
  row("dense product", [&](int round) {
    multiplier.run(dense[static_cast<size_t>(round % 2)], {},
                   {.weights = nullptr, .x = x.rows, .out = out.rows});
  });
  row("product with the image", [&](int round) {
    multiplier.run(images[static_cast<size_t>(round % 16)], {},
                   {.weights = nullptr, .x = coordinates.rows, .out = out.rows});
  });
  std::vector<float> vectors(static_cast<size_t>(kRank * kIn), 0.01f);
  std::vector<std::unique_ptr<cuda::DeviceBasis>> bases;
  for (int i = 0; i < 16; ++i)
    bases.push_back(cuda::make_basis(context, vectors, kRank, kIn, DType::kBF16));
  std::vector<float> residuals(1);
  row("projection, back on the host", [&](int round) {
    cuda::project(context, multiplier,
                  {.basis = bases[static_cast<size_t>(round % 16)].get(),
                   .x = x.rows,
                   .coordinates = coordinates.rows,
                   .residuals = residuals});
  });
  const DeviceMatrix graded(context, DType::kBF16, 1, kIn);
  std::vector<int32_t> kept(1);
  for (const double epsilon : {0.0, 0.3})
    row(fmt::format("grading with epsilon {}", epsilon), [&](int) {
      cuda::grade(context, {.x = x.rows, .epsilon = epsilon, .graded = graded.rows, .kept = kept});
    });
  const MatrixSource source{
      .n_out = kOut,
      .n_in = kIn,
      .read_rows = [](int64_t begin, int64_t end,
                      float* to) { std::fill_n(to, (end - begin) * kIn, 0.5f); },
      .bias = {}};
  std::vector<std::unique_ptr<cuda::DeviceColumns>> columns;
  for (int i = 0; i < 2; ++i) columns.push_back(cuda::pack_columns(context, source, DType::kBF16));
  for (const double share : {0.05, 0.25, 0.5, 0.6, 0.75, 1.0}) {
    std::vector<float> some(static_cast<size_t>(kIn));
    const auto step = 1 / share;
    for (double i = 0; i < static_cast<double>(kIn); i += step) some[static_cast<size_t>(i)] = 1;
    const DeviceArray<float> wide(context, std::span<const float>(some));
    cuda::convert(*context, ConstTensor(wide.data(), DType::kF32, {1, kIn}, Device::kCuda),
                  graded.rows);
    row(fmt::format("product by {:.0f}% of the columns", 100 * share), [&](int round) {
      cuda::linear_columns(context, {.weights = columns[static_cast<size_t>(round % 2)].get(),
                                     .x = graded.rows,
                                     .out = out.rows});
    });
  }
}

// The MLP's output of OPT 6.7B by the columns of what its ReLU leaves.
void bench_graded(const std::shared_ptr<Context>& context) {
  constexpr int64_t kIn = 16384, kOut = 4096;
  constexpr int kCopies = 2;
  const MatrixSource source{.n_out = kOut,
                            .n_in = kIn,
                            .read_rows =
                                [](int64_t begin, int64_t end, float* to) {
                                  for (int64_t i = begin * kIn; i < end * kIn; ++i)
                                    *to++ = static_cast<float>(i * 37 % 101) / 101 - 0.5f;
                                },
                            .bias = {}};
  cuda::Multiplier multiplier(context);
  std::vector<std::unique_ptr<cuda::DeviceColumns>> columns;
  std::vector<std::unique_ptr<DeviceWeights>> dense;
  std::vector<std::unique_ptr<RowGate>> gates;
  for (int i = 0; i < kCopies; ++i) {
    columns.push_back(cuda::pack_columns(context, source, DType::kBF16));
    dense.push_back(std::make_unique<DeviceWeights>(
        random_matrix(context, DType::kBF16, kOut, kIn, 5u + static_cast<uint32_t>(i)),
        cuda::DeviceBias()));
    gates.push_back(cuda::make_gate(
        context, multiplier,
        {.dense = dense.back().get(), .columns = columns.back().get(), .most_kept = 0.75}));
  }
  const DeviceMatrix out(context, DType::kF32, 1, kOut);
  const DeviceMatrix full = random_matrix(context, DType::kBF16, 1, kIn, 9);
  const auto by_dense = time_recorded(*context, 2 * kCopies, [&](int round) {
    multiplier.run(dense[static_cast<size_t>(round % kCopies)]->matrix, {},
                   {.weights = nullptr, .x = full.rows, .accumulate = true, .out = out.rows});
  });
  fmt::print("\none row, {} -> {}, zeros left out; dense {:.1f} us\n", kIn, kOut,
             1e3 * by_dense.median);
  // Other columns every time, so that they do not come from a cache.
  constexpr int kRows = 10;
  for (const double share : {0.02, 0.05, 0.1, 0.2, 0.4, 1.0}) {
    std::vector<float> some(static_cast<size_t>(kRows * kIn));
    for (int row = 0; row < kRows; ++row)
      for (double i = row / share / kRows; i < static_cast<double>(kIn); i += 1 / share)
        some[static_cast<size_t>(row * kIn) + static_cast<size_t>(i)] = 0.7f;
    const DeviceArray<float> wide(context, std::span<const float>(some));
    const DeviceMatrix x(context, DType::kBF16, kRows, kIn);
    cuda::convert(*context, ConstTensor(wide.data(), DType::kF32, {kRows, kIn}, Device::kCuda),
                  x.rows);
    const Timing t = time_recorded(*context, kRows * kCopies, [&](int round) {
      RowGate& gate = *gates[static_cast<size_t>(round % kCopies)];
      gate.forget();
      gate.run({.weights = nullptr,
                .x = x.rows.rows_from(round / kCopies, 1),
                .accumulate = true,
                .out = out.rows},
               0);
    });
    fmt::print("{:>4.0f}% of the columns: {:>6.1f} us, {:.1f}x\n", 100 * share, 1e3 * t.median,
               by_dense.median / t.median);
  }
}

}  // namespace sluice::impl::bench
