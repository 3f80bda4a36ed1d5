// Models on a CUDA device: golden checkpoints whole and cut into pieces, and that no token knows of
// those behind it.

#include "backend/cuda/device.h"
#include "golden/golden_case.h"
#include "model/linear_work.h"
#include "parity/compare.h"
#include "unit/model/family_models.h"
#include "unit/subspace/random_matrices.h"

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

using FamilyParameter = std::tuple<FamilyCase, DType>;

class CudaFamily : public testing::TestWithParam<FamilyParameter> {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
    if (is_encoder(family())) GTEST_SKIP() << "encoders see the future";
    const nlohmann::json config = family().config;
    model.emplace(synthetic_checkpoint(ConfigReader(config, family().name)),
                  make_cuda_backend(std::get<1>(GetParam())), LoadOptions{});
  }
  const FamilyCase& family() const { return std::get<0>(GetParam()); }

  std::optional<Model> model;
};

// As tests/unit/model/attention_test.cpp says of the CPU.
TEST_P(CudaFamily, TheFutureChangesNothing) {
  const std::vector<int32_t> tokens = repeating_tokens(family().n_tokens);
  const size_t kept = tokens.size() * 2 / 3;
  auto changed = tokens;
  for (size_t i = kept; i < changed.size(); ++i) changed[i] = 20 + static_cast<int32_t>(i % 30);
  const auto width = static_cast<size_t>(model->spec().vocab);
  for (const AttentionMode mode :
       {AttentionMode::kDense, AttentionMode::kKeys, AttentionMode::kCopy}) {
    SCOPED_TRACE(std::string(mode_name(mode)));
    UniformAttention choice;
    choice.mode = mode;
    choice.tau = family().tau;
    choice.window = choice.block = 16;
    const AttentionPlan plan =
        mode == AttentionMode::kDense ? AttentionPlan{} : uniform_plan(choice, model->plan_shape());
    const auto run = [&](const std::vector<int32_t>& text) {
      KvCache cache = model->make_cache(1, 0, plan);
      return logits_of(*model, text, cache);
    };
    auto first = run(tokens), second = run(changed);
    EXPECT_NE(first, second);
    first.resize(kept * width);
    second.resize(kept * width);
    // The height of `copy`'s products depends on the future, and with it the order of sums.
    const bool f32 = std::get<1>(GetParam()) == DType::kF32;
    if (mode != AttentionMode::kCopy)
      EXPECT_SAME_BITS(second, first);
    else
      EXPECT_CLOSE(second, first, (f32 ? 5e-6 : 2 * 0x1p-7) * range_of(first));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, CudaFamily,
    testing::Combine(testing::ValuesIn(family_cases()), testing::Values(DType::kF32, DType::kBF16)),
    [](const auto& test) {
      return test_name_of(std::get<0>(test.param).name, {"cuda", std::get<1>(test.param)});
    });

}  // namespace
}  // namespace sluice::test
