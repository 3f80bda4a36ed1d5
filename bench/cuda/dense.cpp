// Times the dense operations of the CUDA backend: copies, products and attention, by device events,
// over weights and caches that together are larger than the second-level cache.
//
//   sluice_cuda_bench [linear|gates|gsi|graded|attention|decode]…    without a name: all

#include "backend/cuda/attention/dense/dense.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/linear/linear.h"
#include "timing.h"

namespace {

using namespace sluice::impl;
using namespace sluice::impl::bench;
using cuda::Context;
using cuda::DeviceMatrix;

void bench_linear(const std::shared_ptr<Context>& context) {
  cuda::Multiplier multiplier(context), library(context, 0);
  const double copy = copy_bandwidth(context);
  fmt::print("copy: {:.2f} TB/s read and written; reading alone: {:.2f} TB/s\n\n", copy,
             read_bandwidth(context));
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
        const Timing t = time_runs(*context, [&](int round) {
          (what.library ? library : multiplier)
              .run(weights[static_cast<size_t>(round % n_copies)], what.bias ? bias : none,
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
            [&](int round) {
              const auto i = static_cast<size_t>(round % n_caches);
              cuda::attend_dense(
                  *context,
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
  if (wanted("gsi")) bench_gsi(context);
  if (wanted("graded")) bench_graded(context);
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
