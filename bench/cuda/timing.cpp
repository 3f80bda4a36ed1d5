#include "cuda/timing.h"

#include <algorithm>
#include <vector>

#include "backend/cuda/elementwise/elements.h"
#include "cuda/read.h"
#include "eval/timing.h"

namespace sluice::impl::bench {
namespace {

using cuda::check;
using cuda::Context;
using cuda::DeviceArray;
using cuda::linear::DeviceMatrix;

}  // namespace

Timing time_runs(Context& context, int rounds, const std::function<void(int)>& run) {
  Stopwatch watch(context);
  const auto time_of = [&](int first, int n) {
    return watch.milliseconds([&] {
      for (int i = 0; i < n; ++i) run(first + i);
    }) / n;
  };
  time_of(0, 3);
  const int at_once = time_of(3, 3) < 0.5 ? 20 : 1;
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) times.push_back(time_of(round * at_once, at_once));
  return middle(times);
}

Timing time_recorded(Context& context, int rounds, int n, const std::function<void(int)>& run) {
  for (int i = 0; i < n; ++i) run(i);  // whatever grows has grown
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t recorded = nullptr;
  check(cudaStreamBeginCapture(context.stream(), cudaStreamCaptureModeThreadLocal), "recording");
  for (int i = 0; i < n; ++i) run(i);
  check(cudaStreamEndCapture(context.stream(), &graph), "recording");
  check(cudaGraphInstantiate(&recorded, graph, 0), "recording");
  Stopwatch watch(context);
  constexpr int kAtOnce = 10;
  std::vector<double> times;
  for (int round = -2; round < rounds; ++round) {
    const double time = watch.milliseconds([&] {
      for (int i = 0; i < kAtOnce; ++i)
        check(cudaGraphLaunch(recorded, context.stream()), "recorded work");
    });
    if (round >= 0) times.push_back(time / (kAtOnce * n));
  }
  cudaGraphExecDestroy(recorded);
  cudaGraphDestroy(graph);
  return middle(times);
}

Timing time_waited(Backend& backend, int rounds, const std::function<void()>& run) {
  std::vector<double> times;
  for (int i = -1; i < rounds; ++i) {
    backend.wait();
    const double ms = time_ms([&] {
      run();
      backend.wait();
    });
    if (i >= 0) times.push_back(ms);
  }
  return middle(times);
}

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
    cuda::elementwise::convert(*context,
                               ConstTensor(rows.data(), DType::kF32, {count, width}, Device::kCuda),
                               matrix.rows.rows_from(first, count));
  }
  context->synchronize();
  return matrix;
}

double copy_bandwidth(const std::shared_ptr<Context>& context) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const DeviceArray<std::byte> from(context, kBytes), to(context, kBytes);
  const Timing t = time_runs(*context, kUsualRounds, [&](int) {
    check(cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice,
                          context->stream()),
          "copy");
  });
  return 2.0 * kBytes / t.median * 1e-9;
}

double read_bandwidth(const std::shared_ptr<Context>& context) {
  const DeviceMatrix data = random_matrix(context, DType::kBF16, 1 << 15, 1 << 14, 5);  // 1 GiB
  const DeviceArray<uint32_t> sum(context, 1);
  const Timing t = time_runs(*context, kUsualRounds, [&](int) {
    read_bytes(*context, data.memory.data(), data.memory.size(), sum.data());
  });
  return static_cast<double>(data.memory.size()) / t.median * 1e-9;
}

}  // namespace sluice::impl::bench
