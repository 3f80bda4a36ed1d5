// Products with block-quantised weights, which stay in their blocks on the device, against the
// reference on expanded weights.

#include "backend/cuda/linear/blocks/weights.h"
#include "block_bytes.h"
#include "io/gguf_blocks.h"
#include "parity/backends.h"
#include "parity/compare.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

struct StackPart {
  DType dtype;
  int64_t n_rows;
};

// Rows of random blocks, of one type or several, in memory as a file has them.
class Stack {
 public:
  Stack(const std::vector<StackPart>& parts, int64_t n_in, uint32_t seed) : n_in_(n_in) {
    for (const StackPart& part : parts) {
      const int64_t begin = n_out_;
      n_out_ += part.n_rows;
      bytes_.push_back(part.dtype == DType::kF32
                           ? plain_rows(part.n_rows * n_in, ++seed)
                           : random_blocks(part.dtype, part.n_rows, n_in, ++seed));
      stored_.push_back({begin, n_out_, part.dtype, bytes_.back().data()});
      add_values(part.dtype, bytes_.back());
    }
  }

  int64_t n_in() const { return n_in_; }
  int64_t n_out() const { return n_out_; }
  MatrixSource source(std::vector<float> bias, bool stored) const {
    MatrixSource source = matrix_source(n_out_, n_in_, weights_, std::move(bias));
    if (stored) source.stored = stored_;
    return source;
  }
  double weight(int64_t row, int64_t k) const { return weights_[at(row, k)]; }
  // The largest numbers that are added up for this weight, per unit of x.
  double term(int64_t row, int64_t k) const { return terms_[at(row, k)]; }

 private:
  size_t at(int64_t row, int64_t k) const { return static_cast<size_t>(row * n_in_ + k); }

  static std::vector<std::byte> plain_rows(int64_t n, uint32_t seed) {
    // As bf16 holds them: plain rows are kept in the compute dtype.
    const std::vector<float> values = random_values(n, seed, DType::kBF16);
    std::vector<std::byte> bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }

  void add_values(DType dtype, const std::vector<std::byte>& bytes) {
    if (dtype == DType::kF32) {
      std::vector<float> values(bytes.size() / sizeof(float));
      std::memcpy(values.data(), bytes.data(), bytes.size());
      weights_.insert(weights_.end(), values.begin(), values.end());
      for (const float x : values) terms_.push_back(std::abs(x));
      return;
    }
    const BlockSize size = block_size(dtype);
    std::vector<float> values(static_cast<size_t>(size.elements));
    for (const std::byte* block = bytes.data(); block < bytes.data() + bytes.size();
         block += size.bytes) {
      expand_blocks(dtype, block, 1, values.data());
      weights_.insert(weights_.end(), values.begin(), values.end());
      terms_.insert(terms_.end(), values.size(), term_of(dtype, block));
    }
  }

  // Quants are multiplied as 128 + q, below 192, and the offset, at most 160, is taken off the sum;
  // those of q8_0 as they are. Minima are added as they are.
  static double term_of(DType dtype, const std::byte* block) {
    const auto half = [&](int64_t at) {
      uint16_t bits = 0;
      std::memcpy(&bits, block + at, sizeof bits);
      return std::abs(double{half_to_float(bits)});
    };
    switch (dtype) {
      case DType::kQ8_0:
        return 128 * half(0);
      case DType::kQ4_1:
      case DType::kQ5_1:
        return 352 * half(0) + half(2);
      case DType::kQ4_K:
      case DType::kQ5_K:
        return 63 * (352 * half(0) + half(2));
      case DType::kQ6_K:
        return 128 * 352 * half(208);
      default:
        return 352 * half(0);
    }
  }

  int64_t n_in_, n_out_ = 0;
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<StoredRows> stored_;
  std::vector<float> weights_;
  std::vector<double> terms_;
};

struct BlockOptions {
  const char* name;
  bool bias = false;
  Activation activation = Activation::kNone;
  bool accumulate = false, f32_out = false;
  int64_t x_pad = 0, out_pad = 0;
};
const BlockOptions kOptions[] = {
    {.name = "plain"},
    {.name = "bias", .bias = true, .x_pad = 5},
    {.name = "gelu", .bias = true, .activation = Activation::kGeluErf},
    {.name = "relu, strided", .bias = true, .activation = Activation::kRelu, .out_pad = 7},
    {.name = "silu, f32 out", .activation = Activation::kSilu, .f32_out = true},
    {.name = "accumulate", .bias = true, .accumulate = true, .f32_out = true, .out_pad = 3},
};

struct BlockInputs {
  BlockInputs(const Stack& stack, int64_t n, DType dtype, uint32_t seed)
      : n_rows(n),
        x(random_values(n * stack.n_in(), seed, dtype)),
        bias(random_values(stack.n_out(), seed + 1)),
        old(random_values(n * stack.n_out(), seed + 2)) {}
  int64_t n_rows;
  std::vector<float> x, bias, old;
};

using Multiply = std::function<void(const LinearArgs&, const Stack&, const std::vector<float>&)>;

std::vector<float> run(Backend& on, DType dtype, const Stack& stack, const BlockOptions& o,
                       const BlockInputs& in, const Multiply& multiply) {
  const DeviceTensor x(on, dtype, {in.n_rows, stack.n_in()}, in.x, o.x_pad);
  const DType out_dtype = o.f32_out ? DType::kF32 : dtype;
  const Shape shape = {in.n_rows, stack.n_out()};
  const DeviceTensor out = o.accumulate ? DeviceTensor(on, out_dtype, shape, in.old, o.out_pad)
                                        : unwritten(on, out_dtype, shape, o.out_pad);
  multiply({.weights = nullptr,
            .x = x.view(),
            .activation = o.activation,
            .accumulate = o.accumulate,
            .out = out.view()},
           stack, o.bias ? in.bias : std::vector<float>{});
  return out.values();
}

// By Backend::linear, from stored rows or from expanded ones.
Multiply by_backend(Backend& on, bool stored) {
  return [&on, stored](LinearArgs args, const Stack& stack, const std::vector<float>& bias) {
    const auto weights = on.pack_linear(stack.source(bias, stored));
    args.weights = weights.get();
    on.linear(args);
    on.wait();
  };
}

// Few rows of bf16 are multiplied with the weights themselves; a sum meets 64 additions in a step
// (quants and offset), one of each step that its warp has, and those of warps, lanes and bias. Many
// rows, and f32, are multiplied with weights as the compute dtype holds them.
std::vector<double> bounds(DType dtype, const Stack& stack, const BlockOptions& o,
                           const BlockInputs& in, const std::vector<float>& expected) {
  const bool few = dtype == DType::kBF16 && in.n_rows <= cuda::linear::kFewBlockRows;
  std::vector<double> bound;
  for (int64_t row = 0; row < in.n_rows; ++row)
    for (int64_t n = 0; n < stack.n_out(); ++n) {
      const size_t at = bound.size();
      double sum = o.bias ? std::abs(in.bias[static_cast<size_t>(n)]) : 0;
      if (o.accumulate) sum += std::abs(in.old[at]);
      double terms = sum;
      for (int64_t k = 0; k < stack.n_in(); ++k) {
        const double x = std::abs(in.x[static_cast<size_t>(row * stack.n_in() + k)]);
        sum += 1.01 * x * std::abs(stack.weight(n, k));
        terms += x * stack.term(n, k);
      }
      double error = dot_error(few ? DType::kF32 : dtype, stack.n_in(), sum);
      if (few) error += static_cast<double>(96 + stack.n_in() / 256) * sum_unit(dtype) * terms;
      error = kActivationSlope * error + activation_error(o.activation, sum);
      bound.push_back(stored_error(o.f32_out ? DType::kF32 : dtype, expected[at], error));
    }
  return bound;
}

class CudaBlocks : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
    backend = make_cuda_backend(dtype());
  }
  DType dtype() const { return GetParam(); }

  void expect_reference(const Stack& stack, const BlockOptions& o, int64_t n_rows, uint32_t seed,
                        const Multiply& multiply) const {
    SCOPED_TRACE(testing::Message()
                 << n_rows << " x " << stack.n_in() << " -> " << stack.n_out() << ", " << o.name);
    const BlockInputs in(stack, n_rows, dtype(), seed);
    const bool few = dtype() == DType::kBF16 && n_rows <= cuda::linear::kFewBlockRows;
    const auto reference = make_reference_backend(few ? DType::kF32 : dtype());
    BlockOptions exact = o;
    exact.f32_out = true;
    const auto expected =
        run(*reference, DType::kF32, stack, exact, in, by_backend(*reference, false));
    EXPECT_CLOSE(run(*backend, dtype(), stack, o, in, multiply), expected,
                 bounds(dtype(), stack, o, in, expected));
  }
  void expect_reference(const Stack& stack, const BlockOptions& o, int64_t n_rows,
                        uint32_t seed) const {
    expect_reference(stack, o, n_rows, seed, by_backend(*backend, true));
  }

  std::unique_ptr<Backend> backend;
};
INSTANTIATE_TEST_SUITE_P(Parity, CudaBlocks, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

// Every height of product that a kernel is made for and what lies between, tiles that are not full,
// an odd number of small blocks, and more pieces of depth than warps.
TEST_P(CudaBlocks, ProductsAgreeWithTheReference) {
  constexpr int64_t kRows[] = {1, 2, 3, 8, 11, 16, 17, 300};
  size_t n = 0;
  for (const DType type : kBlockTypes)
    for (const auto& [n_out, width] : {std::pair{1, 1}, {37, 3}, {203, 18}, {16, 73}}) {
      SCOPED_TRACE(std::string(dtype_name(type)));
      const int64_t unit = block_size(type).elements;
      const int64_t n_in = unit == 32 ? 32 * width : 256 * (1 + width / 8);
      const Stack stack({{type, n_out}}, n_in, static_cast<uint32_t>(n));
      for (const int64_t n_rows : thinned(kRows, 3)) {
        // Larger products take one option each, in rotation.
        const bool small = n_rows * n_in * n_out <= 100'000;
        const BlockOptions* own = &kOptions[++n % std::size(kOptions)];
        for (const BlockOptions& o : kOptions)
          if (small || &o == own) expect_reference(stack, o, n_rows, static_cast<uint32_t>(n));
      }
    }
}

// More tiles than thread blocks of the largest device known, and warps of which one has a piece
// more than the others. In f32 no kernel of few rows runs.
TEST_P(CudaBlocks, TilesFollowEachOther) {
  for (const DType type : kBlockTypes) {
    SCOPED_TRACE(std::string(dtype_name(type)));
    const Stack stack({{type, 4301}}, 2304, 5);
    const std::vector<int64_t> few = {1, 3, 5, 9}, one = {1};
    for (const int64_t n_rows : thinned(dtype() == DType::kBF16 ? few : one, 3))
      expect_reference(stack, kOptions[2], n_rows, 7);
  }
}

TEST_P(CudaBlocks, StacksMayMixTypes) {
  const Stack stack({{DType::kQ4_K, 33},
                     {DType::kQ4_K, 15},
                     {DType::kQ6_K, 21},
                     {DType::kF32, 10},
                     {DType::kQ8_0, 7}},
                    512, 11);
  for (const int64_t n_rows : {1, 5, 16, 40})
    for (const BlockOptions& o : kOptions) expect_reference(stack, o, n_rows, 13);
}

TEST_P(CudaBlocks, PanelsMakeTheWholeProduct) {
  const auto context = std::make_shared<cuda::Context>(0);
  cuda::linear::Multiplier multiplier(context);
  cuda::linear::BlockMultiplier panels(context, multiplier, 1);  // the least: 256 rows
  const Multiply multiply = [&](const LinearArgs& args, const Stack& stack,
                                const std::vector<float>& bias) {
    backend->wait();  // another stream
    const auto weights = cuda::linear::pack_blocks(context, stack.source(bias, true), dtype());
    ASSERT_NE(weights, nullptr);
    panels.run(*weights, args);
    context->synchronize();
  };
  for (const DType type : kBlockTypes) {
    SCOPED_TRACE(std::string(dtype_name(type)));
    const Stack stack({{type, 1001}}, 256, 17);
    for (const BlockOptions& o : {kOptions[2], kOptions[5]})
      expect_reference(stack, o, 65, 19, multiply);
  }
}

TEST_P(CudaBlocks, TakeATenthMoreThanTheFileAtMost) {
  for (const DType type : kBlockTypes) {
    const Stack stack({{type, 64}}, 1024, 23);
    const BlockSize block = block_size(type);
    const int64_t in_file = 64 * 1024 / block.elements * block.bytes;
    EXPECT_LE(10 * backend->pack_linear(stack.source({}, true))->bytes(), 11 * in_file)
        << dtype_name(type);
  }
}

// What a step records is what it does.
TEST_P(CudaBlocks, ARecordedProductIsTheSame) {
  for (const DType type : kBlockTypes) {
    SCOPED_TRACE(std::string(dtype_name(type)));
    const Stack stack({{type, 77}}, 512, 29);
    const BlockInputs in(stack, 1, dtype(), 31);
    const auto weights = backend->pack_linear(stack.source(in.bias, true));
    const DeviceTensor x(*backend, dtype(), {1, 512}, in.x);
    const DeviceTensor once = unwritten(*backend, dtype(), {1, 77});
    const DeviceTensor again = unwritten(*backend, dtype(), {1, 77});
    const auto multiply = [&](const DeviceTensor& out) {
      backend->linear({.weights = weights.get(), .x = x.view(), .out = out.view()});
    };
    multiply(once);
    const auto recording = backend->recorder()->record([&] { multiply(again); });
    ASSERT_NE(recording, nullptr);
    recording->replay(0);
    EXPECT_SAME_BITS(again.values(), once.values());
  }
}

// Gates that decide on the device read weights in bf16: with blocks the host decides.
TEST_P(CudaBlocks, GatesAreLeftToTheHost) {
  const Stack stack({{DType::kQ4_K, 64}}, 256, 37);
  const auto weights = backend->pack_linear(stack.source({}, true));
  const auto columns = backend->pack_columns(stack.source({}, true));
  EXPECT_EQ(backend->device_gates()->make_gate(
                {.dense = weights.get(), .epsilon = 0.1, .columns = columns.get()}),
            nullptr);
}

}  // namespace
}  // namespace sluice::impl::test
