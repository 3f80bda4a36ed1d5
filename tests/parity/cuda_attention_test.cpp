// Attention of the public library on tokens in a GPU's memory, on streams of the caller's: what it
// answers for the same tokens in the host's.

#include "backend/cuda/runtime/device.h"
#include "core/dtype.h"
#include "sluice/attention.h"
#include "unit/api/attention_inputs.h"

namespace sluice::test {
namespace {

using impl::BFloat16;
using impl::cuda::check;
using Stream = impl::cuda::Handle<cudaStream_t, cudaStreamDestroy>;

// Weights and answers are rounded to bf16, each by up to 2^-9 of itself; with the same kernels
// nothing else may differ but the order of sums.
template <typename T>
constexpr double kTolerance = std::is_same_v<T, float> ? kRoundOff : 2 * 0x1p-9;

// Queries, keys and values of a token in one row of the GPU's memory.
template <typename T>
class GpuRows {
 public:
  explicit GpuRows(const AttentionInputs& inputs)
      : shape_(inputs.shape),
        width_(shape_.n_heads * shape_.head_dim),
        narrow_(shape_.n_kv_heads * shape_.head_dim),
        stride_(width_ + 2 * narrow_) {
    std::vector<T> numbers(static_cast<size_t>(shape_.capacity * stride_));
    const auto put = [&](const std::vector<float>& rows, int64_t n, int64_t first) {
      for (int64_t t = 0; t < shape_.capacity; ++t)
        for (int64_t i = 0; i < n; ++i)
          numbers[static_cast<size_t>(t * stride_ + first + i)] =
              impl::from_float<T>(rows[static_cast<size_t>(t * n + i)]);
    };
    put(inputs.q, width_, 0);
    put(inputs.k, narrow_, width_);
    put(inputs.v, narrow_, width_ + narrow_);
    const size_t bytes = numbers.size() * sizeof(T);
    check(cudaMalloc(&numbers_, bytes), "test");
    check(cudaMemcpy(numbers_, numbers.data(), bytes, cudaMemcpyHostToDevice), "test");
    check(cudaMalloc(&out_, inputs.q.size() * sizeof(T)), "test");
  }
  GpuRows(const GpuRows&) = delete;
  GpuRows& operator=(const GpuRows&) = delete;
  ~GpuRows() {
    cudaFree(numbers_);
    cudaFree(out_);
  }
  DeviceTokens tokens(int64_t first, int64_t n) const {
    const T* row = static_cast<const T*>(numbers_) + first * stride_;
    return {.n = n,
            .q = row,
            .k = row + width_,
            .v = row + width_ + narrow_,
            .out = static_cast<T*>(out_) + first * width_,
            .q_stride = stride_,
            .k_stride = stride_,
            .v_stride = stride_};
  }
  std::vector<float> found() const {
    std::vector<T> out(static_cast<size_t>(shape_.capacity * width_));
    check(cudaDeviceSynchronize(), "test");
    check(cudaMemcpy(out.data(), out_, out.size() * sizeof(T), cudaMemcpyDeviceToHost), "test");
    std::vector<float> wide;
    for (const T& x : out) wide.push_back(impl::to_float(x));
    return wide;
  }

 private:
  AttentionShape shape_;
  int64_t width_, narrow_, stride_;
  void *numbers_ = nullptr, *out_ = nullptr;
};

class CudaRows : public testing::Test {
 protected:
  void SetUp() override {
    if (impl::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

// Prefill, single tokens and a second prefill, each on another stream than the one before.
template <typename T>
void expect_tokens_of_the_host(const AttentionShape& shape, const AttentionOptions& options) {
  const DType dtype = std::is_same_v<T, float> ? DType::kF32 : DType::kBF16;
  const AttentionInputs inputs(shape);
  const GpuRows<T> rows(inputs);
  Stream streams[2];
  for (Stream& stream : streams)
    check(cudaStreamCreateWithFlags(stream.to_set(), cudaStreamNonBlocking), "test");
  const std::vector<void*> order = {streams[0].get(), nullptr, streams[1].get(), streams[0].get()};
  std::vector<float> expected(inputs.q.size());
  {
    AttentionDevice device(CudaStream{.device = 0, .stream = order.front()}, dtype);
    Attention there(shape, options, device), here(shape, options, Device::kCuda, dtype);
    for (size_t i = 0; i < order.size(); ++i) {
      const int64_t n = i == 0 ? shape.capacity - 200 : i == 3 ? 198 : 1;
      device.use_stream(order[i]);
      there.append(rows.tokens(there.length(), n));
      inputs.append(here, n, expected);
    }
    EXPECT_LE(largest_difference(rows.found(), expected), kTolerance<T> * range_of(expected));
    EXPECT_NEAR(there.keys_read(), here.keys_read(), 1e-3);  // a decision near its threshold
  }
  check(cudaDeviceSynchronize(), "test");
}

TEST_F(CudaRows, GiveWhatTheHostsGive) {
  for (const int64_t head_dim : {64, 80, 128, 256})
    for (const AttentionOptions& options : {AttentionOptions{}, refine(0), refine(0.02)}) {
      SCOPED_TRACE(head_dim);
      const AttentionShape shape{
          .n_heads = 8, .n_kv_heads = 2, .head_dim = head_dim, .capacity = 1000};
      expect_tokens_of_the_host<float>(shape, options);
      expect_tokens_of_the_host<BFloat16>(shape, options);
    }
}

// Single tokens with nothing between them: each kernel starts while the one before ends.
TEST_F(CudaRows, SingleTokensFollowEachOther) {
  const AttentionShape shape{.n_heads = 8, .n_kv_heads = 2, .head_dim = 64, .capacity = 600};
  const AttentionInputs inputs(shape);
  for (const AttentionOptions& options : {AttentionOptions{}, refine(kInf, /*strict=*/true)}) {
    const GpuRows<BFloat16> one_by_one(inputs), whole(inputs);
    const AttentionDevice device(CudaStream{});
    Attention steps(shape, options, device), all(shape, options, device);
    for (int64_t t = 0; t < shape.capacity; ++t) steps.append(one_by_one.tokens(t, 1));
    all.append(whole.tokens(0, shape.capacity));
    const std::vector<float> expected = whole.found();
    // Weights of tiles are rounded to bf16, those of a single query are not.
    EXPECT_LE(largest_difference(one_by_one.found(), expected), 2 * 0x1p-9 * range_of(expected));
    EXPECT_DOUBLE_EQ(steps.keys_read(), all.keys_read());
  }
}

TEST_F(CudaRows, MemoryThatGrowsKeepsItsTokens) {
  const AttentionShape shape{.n_heads = 4, .n_kv_heads = 2, .head_dim = 64, .capacity = 4000};
  const AttentionInputs inputs(shape);
  for (const AttentionOptions& options : {AttentionOptions{}, refine(kInf, /*strict=*/true)}) {
    const GpuRows<BFloat16> parts_rows(inputs), whole_rows(inputs);
    const AttentionDevice device(CudaStream{});
    Attention parts(shape, options, device), whole(shape, options, device);
    for (const int64_t n : {100, 1, 1200, 1, 2698})
      parts.append(parts_rows.tokens(parts.length(), n));
    whole.append(whole_rows.tokens(0, shape.capacity));
    const std::vector<float> expected = whole_rows.found();
    EXPECT_LE(largest_difference(parts_rows.found(), expected), 2 * 0x1p-9 * range_of(expected));
  }
}

TEST_F(CudaRows, CountsOutliveTheirAttention) {
  const AttentionInputs inputs(kLong);
  const GpuRows<BFloat16> rows(inputs);
  const AttentionDevice device(CudaStream{});
  auto attention = std::make_unique<Attention>(kLong, refine(0.02), device);
  attention->append(rows.tokens(0, kLong.capacity));
  const AttentionReads reads = attention->reads();
  const std::vector<double> by_head = attention->keys_read_by_head();
  attention->clear();
  EXPECT_EQ(attention->keys_read(), 1);
  attention.reset();
  EXPECT_EQ(reads.by_head(), by_head);
}

TEST_F(CudaRows, TheCurrentDeviceAndOtherGpusAreLeftAlone) {
  int before = -1, after = -2;
  check(cudaGetDevice(&before), "test");
  const AttentionDevice device(CudaStream{});
  check(cudaGetDevice(&after), "test");
  EXPECT_EQ(after, before);
  EXPECT_EQ(device.kind(), Device::kCuda);
  expect_error([] { AttentionDevice other(CudaStream{.device = 4096}); }, {"no CUDA device 4096"});
}

}  // namespace
}  // namespace sluice::test
