// The golden checkpoints on a CUDA device: whole, and cut into pieces.

#include "backend/cuda/device.h"
#include "golden/golden_case.h"
#include "unit/model/golden_models.h"

namespace sluice::test {
namespace {

using Parameter = std::tuple<std::string, DType>;

class CudaModel : public testing::TestWithParam<Parameter> {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_P(CudaModel, AgreesWithHuggingFace) {
  const auto& [name, dtype] = GetParam();
  expect_golden(name, dtype, [&type = dtype] { return make_cuda_backend(type); });
}

// A piece, a shorter one, and the rest token by token give what the whole prompt gives. Both sides
// are as far from the truth as a whole prompt may be.
TEST_P(CudaModel, PiecesGiveWhatTheWholeGives) {
  const auto& [name, dtype] = GetParam();
  const GoldenModel golden = golden_model(name);
  Model model(open_checkpoint(golden.path()), make_cuda_backend(dtype),
              {.context = golden.context, .progress = {}});
  if (!model.spec().causal) GTEST_SKIP() << "an encoder takes its text whole";
  KvCache cache = model.make_cache();
  const std::vector<float> whole = logits_of(model, golden.prompt, cache);
  cache.truncate(0);
  std::vector<float> pieces;
  const size_t n = golden.prompt.size(), first = n / 2, second = n * 3 / 4;
  std::vector<size_t> cuts = {0, first, second};
  for (size_t i = second + 1; i <= n; ++i) cuts.push_back(i);
  for (size_t i = 1; i < cuts.size(); ++i) {
    if (cuts[i] == cuts[i - 1]) continue;
    const std::vector<int32_t> piece(golden.prompt.begin() + static_cast<int64_t>(cuts[i - 1]),
                                     golden.prompt.begin() + static_cast<int64_t>(cuts[i]));
    const auto logits = logits_of(model, piece, cache);
    pieces.insert(pieces.end(), logits.begin(), logits.end());
  }
  const double one = dtype == DType::kF32 ? 2e-5 : bf16_tolerance(model.spec().n_layers);
  EXPECT_LE(relative_error(pieces, whole), 2 * one);
}

std::string test_name(const testing::TestParamInfo<Parameter>& info) {
  const auto& [name, dtype] = info.param;
  return test_name_of(name, {"cuda", dtype});
}

INSTANTIATE_TEST_SUITE_P(All, CudaModel,
                         testing::Combine(testing::ValuesIn(all_models()),
                                          testing::Values(DType::kF32, DType::kBF16)),
                         test_name);

}  // namespace
}  // namespace sluice::test
