// What a machine or a request lacks is said in one line, with a hint.

#include "backend/cuda/runtime/device.h"
#include "parity/backends.h"

namespace sluice::impl::test {
namespace {

void expect_complaint(const std::function<void()>& work,
                      const std::vector<const char*>& fragments) {
  try {
    work();
    ADD_FAILURE() << "nothing was refused";
  } catch (const Error& error) {
    const std::string line = error.what();
    for (const char* fragment : fragments)
      EXPECT_NE(line.find(fragment), std::string::npos) << fragment << " is not in: " << line;
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    EXPECT_FALSE(error.hint().empty()) << line;
  }
}

TEST(CudaDevice, AMachineWithoutOneSaysSo) {
  if (cuda::device_count() > 0) GTEST_SKIP() << "there is a CUDA device";
  expect_complaint([] { make_cuda_backend(DType::kBF16); }, {"CUDA"});
}

TEST(CudaDevice, MemoryThatIsNotThereIsRefused) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto backend = make_cuda_backend(DType::kBF16);
  expect_complaint([&] { backend->allocate(DType::kF32, {int64_t{1} << 42}); },
                   {"cannot allocate 16777216 MiB", "are free"});
  // And nothing is broken by it.
  const Buffer some = backend->allocate(DType::kF32, {1024});
  std::vector<float> host(1024, 1.0f);
  backend->download(some.view(), Tensor(host.data(), DType::kF32, {1024}));
  EXPECT_EQ(host, std::vector<float>(1024, 0.0f));
}

// Pieces of pinned memory are a MiB each, up to eight of them.
TEST(CudaDevice, WhatIsSentComesBackWhateverItsSize) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto backend = make_cuda_backend(DType::kF32);
  constexpr int64_t kPiece = (int64_t{1} << 20) / 4;  // numbers
  for (const int64_t n :
       {int64_t{1}, kPiece - 1, kPiece, kPiece + 1, 3 * kPiece + 5, 8 * kPiece, 8 * kPiece + 1}) {
    std::vector<float> sent(static_cast<size_t>(n)), back(sent.size(), -1.0f);
    for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<float>(i % 16777213);
    const Buffer there = backend->allocate(DType::kF32, {n});
    backend->upload(ConstTensor(sent.data(), DType::kF32, {n}), there.view());
    backend->download(there.view(), Tensor(back.data(), DType::kF32, {n}));
    EXPECT_TRUE(back == sent) << n;
  }
}

TEST(CudaDevice, HeadsThatAreTooWideAreRefused) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto backend = make_cuda_backend(DType::kBF16);
  const Shape heads = {1, 1, 264};
  const Buffer rows = backend->allocate(DType::kBF16, heads);
  const Buffer cache = backend->allocate(DType::kBF16, {1, 1, 4, 264});
  const Buffer out = backend->allocate(DType::kBF16, heads);
  expect_complaint(
      [&] {
        backend->attend_dense({.queries = rows.view(),
                               .cache = {cache.view(), cache.view()},
                               .n_tokens = 1,
                               .first_position = 0,
                               .causal = true,
                               .scale = 1,
                               .out = out.view()});
      },
      {"heads of 264", "256"});
}

// A checkpoint that cannot be read to its end, while copies of the pieces before are in flight.
TEST(CudaDevice, AMatrixThatCannotBeReadIsRefused) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto backend = make_cuda_backend(DType::kBF16);
  constexpr int64_t kSize = 4096;  // 64 MiB, in four pieces
  const auto unit_matrix = [](int64_t n_readable) {
    MatrixSource source;
    source.n_out = source.n_in = kSize;
    source.read_rows = [n_readable](int64_t begin, int64_t end, float* out) {
      if (end > n_readable) throw Error("row missing", "download it again");
      std::fill_n(out, (end - begin) * kSize, 0.0f);
      for (int64_t row = begin; row < end; ++row) out[(row - begin) * kSize + row] = 1;
    };
    return source;
  };
  const MatrixSource damaged = unit_matrix(kSize * 5 / 8);
  for (int attempt = 0; attempt < 2; ++attempt) {
    expect_complaint([&] { backend->pack_linear(damaged); }, {"row missing"});
    expect_complaint([&] { backend->pack_columns(damaged); }, {"row missing"});
    expect_complaint([&] { backend->make_table(damaged); }, {"row missing"});
  }
  // And nothing is broken by it.
  const auto weights = backend->pack_linear(unit_matrix(kSize));
  for (const int64_t n_rows : {1, 100}) {
    const auto rows = random_values(n_rows * kSize, 1, DType::kBF16);
    const DeviceTensor x(*backend, DType::kBF16, {n_rows, kSize}, rows);
    const DeviceTensor out = unwritten(*backend, DType::kF32, {n_rows, kSize});
    backend->linear({.weights = weights.get(), .x = x.view(), .out = out.view()});
    EXPECT_EQ(out.values(), rows);
  }
}

}  // namespace
}  // namespace sluice::impl::test
