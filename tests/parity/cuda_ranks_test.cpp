// Models divided over ranks that share a GPU, and sums from GPU to GPU.

#include "backend/cuda/runtime/nccl.h"
#include "parity/backends.h"
#include "unit/model/tensor_models.h"

namespace sluice::impl::test {
namespace {

class CudaRanks : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

// Both on one machine and one device, so sums go through the host.
TEST_P(CudaRanks, DividedByWidthGiveTheTokensOfTheWholeModel) {
  const GoldenModel golden = golden_model(GetParam());
  const CheckpointPtr checkpoint = open_checkpoint(golden.path());
  const Loading how{.context = golden.context, .make_backend = make_cuda_backend};
  Model whole = loaded(checkpoint, how);
  constexpr int64_t n_tokens = 6;
  std::vector<int32_t> prompt = golden.prompt;
  prompt.resize(std::min(prompt.size(), static_cast<size_t>(whole.context() - n_tokens)));
  for (const AttentionPlan& attention :
       {AttentionPlan{}, keys_plan(whole), copy_plan(whole), refine_plan(whole)}) {
    const Plan plan{.attention = attention, .linear = {}};
    const Continuation expected = continued(whole, prompt, n_tokens, plan);
    on_ranks(2,
             [&](Communicator& ranks) {
               Model model = loaded(checkpoint, how, &ranks);
               EXPECT_FALSE(model.tensor_share()->sums_on_devices());
               EXPECT_EQ(continued(model, prompt, n_tokens, plan).tokens, expected.tokens);
             },
             size_t{1} << 20, {"host", "host"});
  }
}
INSTANTIATE_TEST_SUITE_P(Models, CudaRanks,
                         testing::Values("models/llama", "models/gpt2", "models/gptj"),
                         [](const auto& test) {
                           return test_name_of(test.param, {"cuda", DType::kF32});
                         });

// One rank is all that one GPU has: NCCL refuses two.
TEST(CudaSums, OfOneRankLeaveItsRows) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto backend = make_cuda_backend(DType::kF32);
  DeviceRanks* devices = backend->device_ranks();
  if (devices == nullptr) GTEST_SKIP() << "no NCCL";
  EXPECT_NE(devices->device_id().find(':'), std::string::npos);
  const auto sums = devices->join(devices->make_group(), 0, 1);
  const std::vector<float> rows = {1.5f, -2.0f, 3.25f, 0.0f, 1e30f, -7.0f};
  std::vector<float> back(rows.size());
  const Buffer there = backend->allocate(DType::kF32, {2, 3});
  backend->upload(ConstTensor(rows.data(), DType::kF32, {2, 3}), there.view());
  sums->add_all(there.view());
  backend->download(there.view(), Tensor(back.data(), DType::kF32, {2, 3}));
  EXPECT_EQ(back, rows);
}

}  // namespace
}  // namespace sluice::impl::test
