// Times the dense operations of the CUDA backend: copies, products and attention, by device events,
// over weights and caches that together are larger than the second-level cache.
//
//   sluice_cuda_bench [linear|gates|attention|decode]…    without a name: all

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/attend_dense.h"
#include "backend/cuda/elements.h"
#include "backend/cuda/linear.h"
#include "backend/cuda/subspace.h"

namespace {

using namespace sluice;
using cuda::Context;
using cuda::DeviceArray;
using cuda::DeviceMatrix;

constexpr int64_t kCacheBytes = int64_t{64} << 20;

// Milliseconds of run(turn): the median of repeats after a warm-up, and the spread of the middle
// half over it. Short ones are timed many at once, so that starting them stays out of it.
struct Timing {
  double median = 0, spread = 0;
};

Timing time_runs(Context& context, const std::function<void(int)>& run, int repeats = 25) {
  cudaEvent_t begin = nullptr, end = nullptr;
  cuda::check(cudaEventCreate(&begin), "event");
  cuda::check(cudaEventCreate(&end), "event");
  const auto time_of = [&](int first, int n) {
    cuda::check(cudaEventRecord(begin, context.stream()), "event");
    for (int i = 0; i < n; ++i) run(first + i);
    cuda::check(cudaEventRecord(end, context.stream()), "event");
    context.synchronize();
    float milliseconds = 0;
    cuda::check(cudaEventElapsedTime(&milliseconds, begin, end), "event");
    return double{milliseconds} / n;
  };
  time_of(0, 3);
  const int at_once = time_of(3, 3) < 0.5 ? 20 : 1;
  std::vector<double> times;
  for (int turn = 0; turn < repeats; ++turn) times.push_back(time_of(turn * at_once, at_once));
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  return {median, (times[times.size() * 3 / 4] - times[times.size() / 4]) / median};
}

// Random numbers of either sign; zeros would run faster than real data.
DeviceMatrix random_matrix(const std::shared_ptr<Context>& context, DType dtype, int64_t n_rows,
                           int64_t width, uint32_t seed) {
  DeviceMatrix matrix(context, dtype, n_rows, width);
  const int64_t n = std::min<int64_t>(n_rows, std::max<int64_t>(1, (1 << 22) / width));
  std::vector<float> values(static_cast<size_t>(n * width));
  for (float& x : values) {
    seed = seed * 1664525u + 1013904223u;
    x = static_cast<float>(static_cast<int32_t>(seed) >> 8) * 0x1p-23f;
  }
  const DeviceArray<float> rows(context, std::span<const float>(values));
  for (int64_t first = 0; first < n_rows; first += n) {
    const int64_t count = std::min(n, n_rows - first);
    cuda::convert(*context, ConstTensor(rows.data(), DType::kF32, {count, width}, Device::kCuda),
                  matrix.rows.rows_from(first, count));
  }
  return matrix;
}

double copy_bandwidth(const std::shared_ptr<Context>& context) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const DeviceArray<std::byte> from(context, kBytes), to(context, kBytes);
  const Timing t = time_runs(*context, [&](int) {
    cuda::check(cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice,
                                context->stream()),
                "copy");
  });
  return 2.0 * kBytes / t.median * 1e-9;  // TB/s
}

void bench_linear(const std::shared_ptr<Context>& context) {
  cuda::Multiplier multiplier(context), library(context, 0);
  const double copy = copy_bandwidth(context);
  fmt::print("copy: {:.2f} TB/s read and written\n\n", copy);
  fmt::print("{:>6} {:>6} {:>6} {:<22} {:>9} {:>6} {:>8} {:>7} {:>7}\n", "rows", "n_in", "n_out",
             "what", "us", "spread", "TFLOP/s", "TB/s", "of copy");
  struct What {
    const char* name;
    bool bias, accumulate;
    Activation activation;
    bool library = false;
  };
  const What whats[] = {{"plain", false, false, Activation::kNone},
                        {"plain, cuBLASLt", false, false, Activation::kNone, true},
                        {"bias, gelu tanh", true, false, Activation::kGeluTanh},
                        {"bias, relu", true, false, Activation::kRelu},
                        {"bias, into residual", true, true, Activation::kNone}};
  for (const auto& [n_in, n_out] :
       {std::pair<int64_t, int64_t>{4096, 4096}, {4096, 16384}, {16384, 4096}}) {
    const int64_t bytes = 2 * n_in * n_out;
    const auto n_copies = static_cast<int>(1 + 2 * kCacheBytes / bytes);
    std::vector<DeviceMatrix> weights;
    for (int i = 0; i < n_copies; ++i)
      weights.push_back(random_matrix(context, DType::kBF16, n_out, n_in, 7u + i));
    std::vector<float> values(static_cast<size_t>(n_out), 0.3f);
    const cuda::DeviceBias bias(context, values), none;
    for (const int64_t n_rows : {1, 8, 16, 512, 2048}) {
      const DeviceMatrix x = random_matrix(context, DType::kBF16, n_rows, n_in, 3);
      const DeviceMatrix narrow(context, DType::kBF16, n_rows, n_out);
      const DeviceMatrix wide(context, DType::kF32, n_rows, n_out);
      for (const What& what : whats) {
        if (what.library && n_rows > cuda::kFewRows) continue;
        const Timing t = time_runs(*context, [&](int turn) {
          (what.library ? library : multiplier)
              .run(weights[static_cast<size_t>(turn % n_copies)], what.bias ? bias : none,
                   {.weights = nullptr,
                    .x = x.rows,
                    .activation = what.activation,
                    .accumulate = what.accumulate,
                    .out = what.accumulate ? wide.rows : narrow.rows});
        });
        const double flops = 2.0 * static_cast<double>(n_rows * n_in * n_out);
        const double rate = static_cast<double>(bytes) / t.median * 1e-9;
        fmt::print("{:>6} {:>6} {:>6} {:<22} {:>9.1f} {:>6.2f} {:>8.1f} {:>7.2f} {:>7.2f}\n",
                   n_rows, n_in, n_out, what.name, 1e3 * t.median, t.spread,
                   flops / t.median * 1e-9, rate, rate / copy);
      }
    }
  }
}

// What decoding one token through a gate of rank 256, or by the columns of a share of its input,
// takes beside the dense product.
void bench_gates(const std::shared_ptr<Context>& context) {
  constexpr int64_t kIn = 4096, kOut = 16384, kRank = 256;
  cuda::Multiplier multiplier(context);
  fmt::print("\n{:<34} {:>9}\n", "one row, 4096 -> 16384", "us");
  const auto row = [&](const std::string& name, const std::function<void(int)>& run) {
    fmt::print("{:<34} {:>9.1f}\n", name, 1e3 * time_runs(*context, run).median);
  };
  const DeviceMatrix x = random_matrix(context, DType::kBF16, 1, kIn, 1);
  const DeviceMatrix coordinates(context, DType::kBF16, 1, kRank);
  const DeviceMatrix out(context, DType::kBF16, 1, kOut);
  std::vector<DeviceMatrix> images, dense;
  for (int i = 0; i < 16; ++i)
    images.push_back(random_matrix(context, DType::kBF16, kOut, kRank, 3u + i));
  for (int i = 0; i < 2; ++i)
    dense.push_back(random_matrix(context, DType::kBF16, kOut, kIn, 3u + i));
  row("dense product", [&](int turn) {
    multiplier.run(dense[static_cast<size_t>(turn % 2)], {},
                   {.weights = nullptr, .x = x.rows, .out = out.rows});
  });
  row("product with the image", [&](int turn) {
    multiplier.run(images[static_cast<size_t>(turn % 16)], {},
                   {.weights = nullptr, .x = coordinates.rows, .out = out.rows});
  });
  std::vector<float> vectors(static_cast<size_t>(kRank * kIn), 0.01f);
  std::vector<std::unique_ptr<cuda::DeviceBasis>> bases;
  for (int i = 0; i < 16; ++i)
    bases.push_back(cuda::make_basis(context, vectors, kRank, kIn, DType::kBF16));
  std::vector<float> residuals(1);
  row("projection, back on the host", [&](int turn) {
    cuda::project(context, multiplier,
                  {.basis = bases[static_cast<size_t>(turn % 16)].get(),
                   .x = x.rows,
                   .coordinates = coordinates.rows,
                   .residuals = residuals});
  });
  const DeviceMatrix graded(context, DType::kBF16, 1, kIn);
  std::vector<int32_t> kept(1);
  for (const double epsilon : {0.0, 0.3})
    row(fmt::format("grading with epsilon {}", epsilon), [&](int) {
      cuda::grade(context, {.x = x.rows, .epsilon = epsilon, .graded = graded.rows, .kept = kept});
    });
  const MatrixSource source{
      .n_out = kOut,
      .n_in = kIn,
      .read_rows = [](int64_t begin, int64_t end,
                      float* to) { std::fill_n(to, (end - begin) * kIn, 0.5f); },
      .bias = {}};
  std::vector<std::unique_ptr<cuda::DeviceColumns>> columns;
  for (int i = 0; i < 2; ++i) columns.push_back(cuda::pack_columns(context, source, DType::kBF16));
  for (const double share : {0.05, 0.25, 0.5, 0.6, 0.75, 1.0}) {
    std::vector<float> some(static_cast<size_t>(kIn));
    const auto step = 1 / share;
    for (double i = 0; i < static_cast<double>(kIn); i += step) some[static_cast<size_t>(i)] = 1;
    const DeviceArray<float> wide(context, std::span<const float>(some));
    cuda::convert(*context, ConstTensor(wide.data(), DType::kF32, {1, kIn}, Device::kCuda),
                  graded.rows);
    row(fmt::format("product by {:.0f}% of the columns", 100 * share), [&](int turn) {
      cuda::linear_columns(context, {.weights = columns[static_cast<size_t>(turn % 2)].get(),
                                     .x = graded.rows,
                                     .out = out.rows});
    });
  }
}

struct Heads {
  int64_t n_heads, n_kv_heads, head_dim;
};

void bench_attention(const std::shared_ptr<Context>& context, bool decode) {
  fmt::print("\n{:>6} {:>7} {:>7} {:>5} {:<8} {:>10} {:>6} {:>8} {:>7}\n", "rows", "keys", "heads",
             "dim", "", "us", "spread", "TFLOP/s", "TB/s");
  for (const Heads& h : {Heads{32, 32, 128}, Heads{16, 16, 256}, Heads{32, 32, 64},
                         Heads{32, 32, 80}, Heads{32, 8, 128}})
    for (const int64_t n_keys : {2048, 8192, 32768}) {
      const int64_t n_rows = decode ? 1 : n_keys;
      const int64_t width = h.n_heads * h.head_dim, kv_rows = h.n_kv_heads * n_keys;
      const int64_t kv_bytes = 4 * kv_rows * h.head_dim;
      const auto n_caches = static_cast<int>(decode ? 1 + 2 * kCacheBytes / kv_bytes : 1);
      const DeviceMatrix queries = random_matrix(context, DType::kBF16, n_rows, width, 1);
      const DeviceMatrix out(context, DType::kBF16, n_rows, width);
      std::vector<DeviceMatrix> keys, values;
      for (int i = 0; i < n_caches; ++i) {
        keys.push_back(random_matrix(context, DType::kBF16, kv_rows, h.head_dim, 2u + i));
        values.push_back(random_matrix(context, DType::kBF16, kv_rows, h.head_dim, 30u + i));
      }
      for (const bool causal : {true, false}) {
        if (decode && !causal) continue;
        const Shape cache = {1, h.n_kv_heads, n_keys, h.head_dim};
        const auto heads_of = [&](const DeviceMatrix& rows) {
          return Tensor(rows.padded.bytes(), DType::kBF16, {n_rows, h.n_heads, h.head_dim},
                        Device::kCuda);
        };
        const Timing t = time_runs(
            *context,
            [&](int turn) {
              const auto i = static_cast<size_t>(turn % n_caches);
              cuda::attend_dense(
                  context,
                  {.queries = heads_of(queries),
                   .cache = {Tensor(keys[i].padded.bytes(), DType::kBF16, cache, Device::kCuda),
                             Tensor(values[i].padded.bytes(), DType::kBF16, cache, Device::kCuda)},
                   .n_tokens = n_rows,
                   .first_position = n_keys - n_rows,
                   .causal = causal,
                   .scale = 1 / std::sqrt(static_cast<float>(h.head_dim)),
                   .out = heads_of(out)});
            },
            n_rows >= 32768 ? 7 : 25);
        const double pairs = static_cast<double>(n_rows) * static_cast<double>(n_keys) *
                             (causal && !decode ? 0.5 : 1.0);
        fmt::print("{:>6} {:>7} {:>4}/{:<2} {:>5} {:<8} {:>10.1f} {:>6.2f} {:>8.1f} {:>7.2f}\n",
                   n_rows, n_keys, h.n_heads, h.n_kv_heads, h.head_dim,
                   causal ? "causal" : "all keys", 1e3 * t.median, t.spread,
                   4 * pairs * static_cast<double>(width) / t.median * 1e-9,
                   static_cast<double>(kv_bytes) / t.median * 1e-9);
      }
    }
}

int run(const std::vector<std::string>& names) {
  const auto wanted = [&](const char* name) {
    return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
  };
  const auto context = std::make_shared<Context>(0);
  fmt::print("{}\n", context->description());
  if (wanted("linear")) bench_linear(context);
  if (wanted("gates")) bench_gates(context);
  if (wanted("attention")) bench_attention(context, false);
  if (wanted("decode")) bench_attention(context, true);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "sluice_cuda_bench: {}\n", error.what());
    return 1;
  }
}
