// Models divided over ranks that share a GPU, and sums from GPU to GPU.

#include "backend/cuda/runtime/nccl.h"
#include "model/join_devices.h"
#include "parity/backends.h"
#include "unit/model/tensor_models.h"
#include "unit/ranks/pair_ranks.h"

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

// NCCL refuses two ranks on one GPU, but not where it takes them for those of two machines.
const std::vector<std::string> kTwoMachines = {"NCCL_HOSTID=machine {rank}",
                                               "NCCL_SOCKET_IFNAME=lo"};

void expect_pair_passes() {
  const testing::TestInfo& info = *testing::UnitTest::GetInstance()->current_test_info();
  const auto codes =
      run_as_pair(std::string(info.test_suite_name()) + "." + info.name(), kTwoMachines);
  EXPECT_EQ(codes, (std::array<int, 2>{0, 0}));
}

class CudaSums : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
    if (cuda::nccl() == nullptr) GTEST_SKIP() << "no NCCL";
  }
};

TEST_F(CudaSums, OfTwoRanksAreTheSameOnBoth) {
  auto transport = pair_transport();
  if (transport == nullptr) return expect_pair_passes();
  Communicator ranks(std::move(transport));
  const auto backend = make_cuda_backend(DType::kF32);
  EXPECT_NE(backend->device_ranks()->device_id().find(':'), std::string::npos);
  const auto sums = join_devices(ranks, backend->device_ranks());
  ASSERT_NE(sums, nullptr);
  constexpr int64_t kRows = 3, kWidth = 1000;
  const auto of_rank = [](int rank) {
    return random_values(kRows * kWidth, static_cast<uint32_t>(rank + 1), DType::kF32);
  };
  const std::vector<float> own = of_rank(ranks.rank());
  std::vector<float> expected = of_rank(0), back(own.size());
  for (size_t i = 0; const float other : of_rank(1)) expected[i++] += other;
  const Buffer there = backend->allocate(DType::kF32, {kRows, kWidth});
  backend->upload(ConstTensor(own.data(), DType::kF32, {kRows, kWidth}), there.view());
  sums->add_all(there.view());
  backend->download(there.view(), Tensor(back.data(), DType::kF32, {kRows, kWidth}));
  EXPECT_EQ(back, expected);
}

TEST_F(CudaSums, OfModelsDividedByWidthGiveTheTokensOfTheWholeModel) {
  auto transport = pair_transport();
  if (transport == nullptr) return expect_pair_passes();
  Communicator ranks(std::move(transport));
  const GoldenModel golden = golden_model("models/llama");
  const CheckpointPtr checkpoint = open_checkpoint(golden.path());
  const Loading how{.context = golden.context, .make_backend = make_cuda_backend};
  Model whole = loaded(checkpoint, how), divided = loaded(checkpoint, how, &ranks);
  EXPECT_TRUE(divided.tensor_share()->sums_on_devices());
  constexpr int64_t n_tokens = 6;
  std::vector<int32_t> prompt = golden.prompt;
  prompt.resize(std::min(prompt.size(), static_cast<size_t>(whole.context() - n_tokens)));
  for (const AttentionPlan& attention : {AttentionPlan{}, refine_plan(whole)}) {
    const Plan plan{.attention = attention, .linear = {}};
    EXPECT_EQ(continued(divided, prompt, n_tokens, plan).tokens,
              continued(whole, prompt, n_tokens, plan).tokens);
  }
}

}  // namespace
}  // namespace sluice::impl::test
