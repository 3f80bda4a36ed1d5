// Graded products whose rows the device cuts: what they keep and give against the reference.
// docs/algorithm.md, section 4.

#include <array>

#include "backend/cuda/runtime/device.h"
#include "layer/linear_gate.h"
#include "parity/subspace_case.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

// Sparse rows, which go by columns, full ones, which go by the whole matrix, and rows of equal
// numbers, whose cut no sum in another order could tell: 16 of 64 are exactly a quarter.
TEST(CudaGraded, RowsKeepWhatTheReferenceKeeps) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto backend = make_cuda_backend(DType::kBF16);
  const auto reference = make_reference_backend(DType::kBF16);
  const std::array<int64_t, 3> widths = {64, 1031, 6000};
  for (const auto& [n_in, epsilon] : thinned(combinations(widths, std::array{0.0, 0.3, 0.5}), 4)) {
    SCOPED_TRACE(testing::Message() << n_in << ", epsilon " << epsilon);
    constexpr int64_t kOut = 300;
    const auto source =
        matrix_source(kOut, n_in, random_values(kOut * n_in, 8), random_values(kOut, 9));
    const GroupPlan plan{.kind = LinearKind::kGraded, .rank = 0, .epsilon = epsilon, .adaptive = 0};
    std::vector<std::vector<float>> rows;
    for (const int64_t every : {1, 3, 40}) {
      rows.push_back(random_values(n_in, static_cast<uint32_t>(every), DType::kBF16));
      for (int64_t i = 0; i < n_in; ++i)
        if (i % every != 0) rows.back()[static_cast<size_t>(i)] = 0;
    }
    rows.push_back(std::vector<float>(static_cast<size_t>(n_in), -1.0f));
    rows.push_back(std::vector<float>(static_cast<size_t>(n_in), 0.0f));
    LinearCounts counts[2];
    std::vector<float> outs[2];
    for (const int side : {0, 1}) {
      Backend& on = side == 0 ? *backend : *reference;
      LinearGroup group(on.pack_linear(source));
      group.add_columns(on, source);
      LinearGate gate(on, group, plan, 1, std::make_shared<LinearScratch>());
      for (const auto& row : rows) {
        const DeviceTensor x(on, DType::kBF16, {1, n_in}, row);
        const DeviceTensor out = unwritten(on, DType::kF32, {1, kOut});
        gate.run(
            {.weights = nullptr, .x = x.view(), .activation = Activation::kRelu, .out = out.view()},
            -1);
        const auto values = out.values();
        outs[side].insert(outs[side].end(), values.begin(), values.end());
      }
      counts[side] = gate.counts();
    }
    EXPECT_EQ(counts[0].n_kept, counts[1].n_kept);
    EXPECT_EQ(counts[0].elements, counts[1].elements);
    EXPECT_CLOSE(outs[0], outs[1], dot_error(DType::kBF16, n_in, static_cast<double>(n_in)));
  }
}

}  // namespace
}  // namespace sluice::impl::test
