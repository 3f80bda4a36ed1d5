// Attention on tokens in the memory of its device: where there is no GPU, that of the host.

#include <gtest/gtest.h>

#include "core/dtype.h"
#include "sluice/attention.h"
#include "unit/api/attention_inputs.h"

namespace sluice::test {
namespace {

// Queries, keys and values of a token in one row, as a fused projection leaves them, from an odd
// place in memory.
template <typename T>
struct FusedRows {
  AttentionShape shape;
  int64_t width, stride;
  std::vector<T> numbers, out;

  explicit FusedRows(const AttentionInputs& inputs)
      : shape(inputs.shape),
        width(shape.n_heads * shape.head_dim),
        stride((shape.n_heads + 2 * shape.n_kv_heads) * shape.head_dim + 3),
        numbers(static_cast<size_t>(1 + shape.capacity * stride)),
        out(inputs.q.size()) {
    const int64_t narrow = shape.n_kv_heads * shape.head_dim;
    const auto put = [&](const std::vector<float>& rows, int64_t n, int64_t first) {
      for (int64_t t = 0; t < shape.capacity; ++t)
        for (int64_t i = 0; i < n; ++i)
          numbers[static_cast<size_t>(1 + t * stride + first + i)] =
              impl::from_float<T>(rows[static_cast<size_t>(t * n + i)]);
    };
    put(inputs.q, width, 0);
    put(inputs.k, narrow, width);
    put(inputs.v, narrow, width + narrow);
  }
  DeviceTokens tokens(int64_t first, int64_t n) {
    const T* row = numbers.data() + 1 + first * stride;
    return {.n = n,
            .q = row,
            .k = row + width,
            .v = row + width + shape.n_kv_heads * shape.head_dim,
            .out = out.data() + first * width,
            .q_stride = stride,
            .k_stride = stride,
            .v_stride = stride};
  }
  std::vector<float> found() const {
    std::vector<float> wide;
    for (const T& x : out) wide.push_back(impl::to_float(x));
    return wide;
  }
};

template <typename T>
void expect_tokens_of_the_host(const AttentionDevice& device, const AttentionOptions& options) {
  const AttentionInputs inputs(kLong);
  FusedRows<T> fused(inputs);
  Attention spans(kLong, options, device.kind(), device.dtype()), rows(kLong, options, device);
  std::vector<float> expected(inputs.q.size());
  for (const int64_t n : {300, 1, 1, 398}) {
    rows.append(fused.tokens(rows.length(), n));
    inputs.append(spans, n, expected);
  }
  // Numbers are rounded to the dtype alike, so nothing differs but where rows begin.
  EXPECT_EQ(fused.found(), expected);
  EXPECT_EQ(rows.keys_read_by_head(), spans.keys_read_by_head());
  EXPECT_EQ(rows.length(), kLong.capacity);
}

TEST(ApiAttentionRows, AreReadInPlace) {
  for (const Device kind : {Device::kCpu, Device::kReference})
    for (const AttentionOptions& options : {AttentionOptions{}, refine(0.02), refine(0.02, true)}) {
      expect_tokens_of_the_host<float>(AttentionDevice(kind), options);
      expect_tokens_of_the_host<impl::BFloat16>(AttentionDevice(kind, DType::kBF16), options);
    }
}

// Twice the tokens that there is room for at first, and more.
constexpr AttentionShape kGrowing{.n_heads = 2, .n_kv_heads = 1, .head_dim = 16, .capacity = 4000};

TEST(ApiAttentionRows, MemoryThatGrowsKeepsItsTokens) {
  const AttentionInputs inputs(kGrowing);
  for (const AttentionOptions& options : {AttentionOptions{}, refine(kInf, /*strict=*/true)}) {
    const AttentionDevice device(Device::kCpu);
    Attention whole(kGrowing, options, device), parts(kGrowing, options, device);
    std::vector<float> out(inputs.q.size());
    for (const int64_t n : {100, 1, 1200, 1, 2698}) inputs.append(parts, n, out);
    expect_alike(out, inputs.all(whole));
  }
}

TEST(ApiAttentionRows, ADeviceIsSharedAndOutlivesItsName) {
  const AttentionInputs inputs(kSmall);
  auto device = std::make_unique<AttentionDevice>(Device::kCpu, DType::kBF16);
  Attention first(kSmall, {}, *device), second(kSmall, Plan(), 3, *device);
  EXPECT_EQ(first.device().kind(), Device::kCpu);
  EXPECT_EQ(first.device().dtype(), DType::kBF16);
  EXPECT_EQ(first.device().ordinal(), 0);
  EXPECT_EQ(first.shape().head_dim, kSmall.head_dim);
  device.reset();
  EXPECT_EQ(inputs.all(first), inputs.all(second));
}

TEST(ApiAttentionRows, CountsOutliveTheirAttention) {
  const AttentionInputs inputs(kLong);
  auto attention = std::make_unique<Attention>(kLong, refine(0.02));
  EXPECT_EQ(attention->reads().keys_read(), 1);
  inputs.all(*attention);
  const AttentionReads reads = attention->reads();
  const double share = attention->keys_read();
  const std::vector<double> by_head = attention->keys_read_by_head();
  attention->clear();
  attention.reset();
  EXPECT_EQ(reads.keys_read(), share);
  EXPECT_EQ(reads.by_head(), by_head);
}

TEST(ApiAttentionRows, WhatDoesNotFitIsRefused) {
  const AttentionInputs inputs(kSmall);
  FusedRows<float> fused(inputs);
  Attention attention(kSmall);
  const auto refused = [&](void (*change)(DeviceTokens&), const char* text) {
    DeviceTokens tokens = fused.tokens(0, 2);
    change(tokens);
    expect_error([&] { attention.append(tokens); }, {text});
    EXPECT_EQ(attention.length(), 0);
  };
  refused([](DeviceTokens& t) { t.n = 0; }, "0 are no tokens");
  refused([](DeviceTokens& t) { t.n = 71; }, "capacity of 70");
  refused([](DeviceTokens& t) { t.k = nullptr; }, "missing");
  refused([](DeviceTokens& t) { t.v = static_cast<const char*>(t.v) + 1; }, "between two numbers");
  refused([](DeviceTokens& t) { t.q_stride = 143; }, "overlap");
  refused([](DeviceTokens& t) { t.out_stride = -144; }, "overlap");
  AttentionDevice device(Device::kCpu);
  expect_error([&] { device.use_stream(nullptr); }, {"no stream"});
}

TEST(ApiAttentionRows, AGpuThatIsNotThereIsRefused) {
  expect_error([] { AttentionDevice device(CudaStream{.device = 4096}); }, {"CUDA"});
}

}  // namespace
}  // namespace sluice::test
