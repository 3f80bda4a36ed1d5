// Scores that are compared on a device against those compared on the host.

#include "backend/cuda/runtime/device.h"
#include "eval/compare/compare.h"
#include "parity/backends.h"

namespace sluice::impl::test {
namespace {

constexpr float kNone = -INFINITY;

std::vector<TokenComparison> on_device(int64_t vocab, const std::vector<float>& base,
                                       const std::vector<float>& scores,
                                       const std::vector<int32_t>& next, int64_t pad) {
  const auto backend = make_cuda_backend(DType::kF32);
  const Shape shape = {std::ssize(next), vocab};
  const DeviceTensor of_base(*backend, DType::kF32, shape, base, pad);
  const DeviceTensor of_other(*backend, DType::kF32, shape, scores);
  std::vector<TokenComparison> found(next.size());
  backend->score_comparer()->compare_scores(
      {.base = of_base.view(), .scores = of_other.view(), .next = next, .out = found});
  return found;
}

std::vector<TokenComparison> on_host(int64_t vocab, const std::vector<float>& base,
                                     const std::vector<float>& scores,
                                     const std::vector<int32_t>& next) {
  std::vector<TokenComparison> found;
  const auto n = static_cast<size_t>(vocab);
  for (size_t row = 0; row < next.size(); ++row) {
    BaseRow of_base;
    of_base.set(std::span(base).subspan(row * n, n));
    found.push_back(of_base.against(std::span(scores).subspan(row * n, n), next[row]));
  }
  return found;
}

// Sums of at most 5000 terms of one sign err by 5000 units of float64, those of `gap` by as many of
// 40, the greatest difference of scores; exponents of 40 by 40 units more.
constexpr double kRounded = 5000 * 0x1p-53 * 50;

TEST(CudaScores, AreComparedAsOnTheHost) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  for (const int64_t vocab : {1, 2, 31, 257, 5000})
    for (const float apart : {0.0f, 0.01f, 20.0f}) {
      const int64_t n_rows = 5;
      const std::vector<float> base = random_values(n_rows * vocab, 1, DType::kF32, 20.0f);
      std::vector<float> scores = random_values(n_rows * vocab, 2, DType::kF32, apart);
      for (size_t i = 0; i < scores.size(); ++i) scores[i] += base[i];
      std::vector<int32_t> next;
      for (int64_t row = 0; row < n_rows; ++row)
        next.push_back(static_cast<int32_t>((row * 37 + vocab - 1) % vocab));
      const auto expected = on_host(vocab, base, scores, next);
      const auto found = on_device(vocab, base, scores, next, 3);
      for (size_t row = 0; row < found.size(); ++row) {
        EXPECT_NEAR(found[row].kl, expected[row].kl, kRounded);
        EXPECT_NEAR(found[row].base_loss, expected[row].base_loss, kRounded);
        EXPECT_NEAR(found[row].loss, expected[row].loss, kRounded);
        EXPECT_NEAR(found[row].delta_p, expected[row].delta_p, kRounded);
        EXPECT_EQ(found[row].same_top, expected[row].same_top);
        if (apart == 0) {
          EXPECT_EQ(found[row].kl, 0);
        }
      }
    }
}

TEST(CudaScores, TiesGoToTheSmallerIdAndForbiddenTokensCountForNothing) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const std::vector<float> base = {1, 3, 3, kNone, 0, 2, 2, kNone};
  const std::vector<float> scores = {1, 2, 3, kNone, 0, 2, 2, kNone};
  const auto expected = on_host(4, base, scores, {1, 2});
  const auto found = on_device(4, base, scores, {1, 2}, 0);
  EXPECT_FALSE(found[0].same_top);
  EXPECT_TRUE(found[1].same_top);
  EXPECT_NEAR(found[0].kl, expected[0].kl, kRounded);
  EXPECT_GT(found[0].kl, 0.01);
  EXPECT_EQ(found[1].kl, 0);
}

TEST(CudaScores, NaNAndATokenThatOnlyTheBaseAllowsAreSeen) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const std::vector<float> base = {1, 2, 3, 1, 2, 3}, scores = {1, NAN, 3, 1, kNone, 3};
  const auto found = on_device(3, base, scores, {0, 0}, 0);
  EXPECT_TRUE(std::isnan(found[0].loss));
  EXPECT_EQ(found[1].kl, INFINITY);
}

}  // namespace
}  // namespace sluice::impl::test
