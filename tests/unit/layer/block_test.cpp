// The wiring of a block: what each kind adds to the residual stream, and that the workspace grows.

#include "layer/block.h"

#include <gtest/gtest.h>

#include "parity/backends.h"
#include "parity/compare.h"

namespace sluice::impl::test {
namespace {

constexpr int64_t kBlockWidth = 4;

// A block whose attention and MLP each multiply their input by a known number: one token, so that
// attention returns its value; the value projection is `attention` times the identity, and the MLP
// `mlp` times the identity with relu between (inputs are positive).
class ScalingBlock {
 public:
  ScalingBlock(Backend& backend, BlockKind kind, float attention, float mlp)
      : shape{kind,
              kBlockWidth,
              1,
              1,
              kBlockWidth,
              kBlockWidth,
              Activation::kRelu,
              false,
              true,
              false,
              RotaryStyle::kHalves} {
    std::vector<float> qkv(3 * kBlockWidth * kBlockWidth, 0.0f);
    for (int64_t i = 0; i < kBlockWidth; ++i)
      qkv[static_cast<size_t>((2 * kBlockWidth + i) * kBlockWidth + i)] = attention;
    weights.qkv = backend.pack_linear(matrix_source(3 * kBlockWidth, kBlockWidth, qkv));
    weights.attention_out =
        backend.pack_linear(matrix_source(kBlockWidth, kBlockWidth, identity(1)));
    weights.mlp_in = backend.pack_linear(matrix_source(kBlockWidth, kBlockWidth, identity(1)));
    weights.mlp_out = backend.pack_linear(matrix_source(kBlockWidth, kBlockWidth, identity(mlp)));
    for (Norm* norm : {&weights.attention_norm, &weights.mlp_norm}) {
      norm->kind = NormKind::kRms;
      norm->epsilon = 0;
      norm->exists = true;
    }
  }

  BlockShape shape;
  BlockWeights weights;

 private:
  static std::vector<float> identity(float x) {
    std::vector<float> matrix(kBlockWidth * kBlockWidth, 0.0f);
    for (size_t i = 0; i < kBlockWidth; ++i) matrix[i * kBlockWidth + i] = x;
    return matrix;
  }
};

std::vector<float> run(Backend& backend, const ScalingBlock& block,
                       const std::vector<float>& residual) {
  Workspace workspace;
  workspace.resize(backend, block.shape, 1);
  std::copy(residual.begin(), residual.end(), workspace.residual().data<float>());
  const Buffer keys = backend.allocate(DType::kF32, {1, 1, 1, kBlockWidth});
  const Buffer values = backend.allocate(DType::kF32, {1, 1, 1, kBlockWidth});
  run_block(backend, block.shape, block.weights,
            {.n_tokens = 1,
             .first_position = 0,
             .cache = {keys.view(), values.view()},
             .cosine = {},
             .sine = {}},
            workspace);
  const float* out = workspace.residual().data<float>();
  return {out, out + kBlockWidth};
}

std::vector<float> run(BlockKind kind, const std::vector<float>& residual) {
  const auto backend = make_reference_backend(DType::kF32);
  return run(*backend, ScalingBlock(*backend, kind, 2, 3), residual);
}

// All numbers equal, so that the norm of any of them is ones.
const std::vector<float> kFives(kBlockWidth, 5.0f);

TEST(Block, PreNormAddsEachHalfOfTheNormedStream) {
  // 5 + 2 * 1 = 7, then 7 + 3 * 1.
  EXPECT_CLOSE(run(BlockKind::kPreNorm, kFives), std::vector<float>(kBlockWidth, 10.0f), 1e-5);
}

TEST(Block, ParallelFeedsBothHalvesTheSameInput) {
  // Equal numbers do not tell it from pre-norm: (2, 4, 4, 2) has a mean square of 10.
  const std::vector<float> x = {2, 4, 4, 2};
  std::vector<float> expected;
  for (const float v : x) expected.push_back(v + (2 + 3) * v / std::sqrt(10.0f));
  EXPECT_CLOSE(run(BlockKind::kParallel, x), expected, 1e-5);
}

TEST(Block, ParallelWithTwoNormsFeedsEachHalfItsOwn) {
  const auto backend = make_reference_backend(DType::kF32);
  ScalingBlock block(*backend, BlockKind::kParallelNorms, 2, 3);
  const std::vector<float> weight(kBlockWidth, 10.0f), x = {2, 4, 4, 2};
  block.weights.mlp_norm.weight = backend->allocate(DType::kF32, {kBlockWidth});
  backend->upload(ConstTensor(weight.data(), DType::kF32, {kBlockWidth}),
                  block.weights.mlp_norm.weight.view());
  std::vector<float> expected;
  for (const float v : x) expected.push_back(v + (2 + 3 * 10) * v / std::sqrt(10.0f));
  EXPECT_CLOSE(run(*backend, block, x), expected, 1e-5);
}

// One head of equal queries and keys: their norm, but not the values', is taken off.
TEST(Block, NormsOfHeadsLeaveValuesAlone) {
  const auto backend = make_reference_backend(DType::kF32);
  ScalingBlock block(*backend, BlockKind::kPreNorm, 2, 3);
  for (Norm* norm : {&block.weights.query_norm, &block.weights.key_norm}) {
    norm->exists = true;
    norm->epsilon = 1;
    norm->weight = backend->allocate(DType::kF32, {kBlockWidth});
  }
  EXPECT_CLOSE(run(*backend, block, kFives), std::vector<float>(kBlockWidth, 10.0f), 1e-5);
}

TEST(Block, PreAndPostNormsNormWhatEachHalfAdds) {
  const auto backend = make_reference_backend(DType::kF32);
  ScalingBlock block(*backend, BlockKind::kPrePostNorm, 2, 3);
  const auto set = [&](Norm& norm, float weight) {
    const std::vector<float> weights(kBlockWidth, weight);
    norm = {.kind = NormKind::kRms, .epsilon = 0, .weight = {}, .bias = {}, .exists = true};
    norm.weight = backend->allocate(DType::kF32, {kBlockWidth});
    backend->upload(ConstTensor(weights.data(), DType::kF32, {kBlockWidth}), norm.weight.view());
  };
  set(block.weights.attention_post_norm, 10);
  set(block.weights.mlp_post_norm, 100);
  // 2 * 1 is normed to 1 and weighted: 5 + 10 = 15, then 15 + 100.
  EXPECT_CLOSE(run(*backend, block, kFives), std::vector<float>(kBlockWidth, 115.0f), 1e-4);
}

TEST(Block, PostNormNormsAfterEachSum) {
  // norm(5 + 2 * 5) = 1, then norm(1 + 3 * 1).
  EXPECT_CLOSE(run(BlockKind::kPostNorm, kFives), std::vector<float>(kBlockWidth, 1.0f), 1e-5);
  const std::vector<float> x = {2, 4, 4, 2};
  std::vector<float> expected;
  for (const float v : x) expected.push_back(v / std::sqrt(10.0f));
  EXPECT_CLOSE(run(BlockKind::kPostNorm, x), expected, 1e-5);
}

TEST(Workspace, GrowsAndKeepsItsMemoryWhenItShrinks) {
  const auto backend = make_reference_backend(DType::kBF16);
  const ScalingBlock block(*backend, BlockKind::kPreNorm, 1, 1);
  Workspace workspace;
  workspace.resize(*backend, block.shape, 5);
  const std::byte* where = workspace.residual().bytes();
  workspace.resize(*backend, block.shape, 2);
  EXPECT_EQ(workspace.residual().bytes(), where);
  EXPECT_EQ(workspace.residual().shape(), Shape({2, kBlockWidth}));
  EXPECT_EQ(workspace.qkv().shape(), Shape({2, 3 * kBlockWidth}));
  EXPECT_EQ(workspace.residual().dtype(), DType::kF32);
  EXPECT_EQ(workspace.input().dtype(), DType::kBF16);
  workspace.resize(*backend, block.shape, 50);
  EXPECT_EQ(workspace.mlp_in().shape(), Shape({50, kBlockWidth}));
}

}  // namespace
}  // namespace sluice::impl::test
