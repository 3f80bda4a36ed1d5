// Times the selection of a layer on one device at planted redundancy, beside the rate of a large
// matrix product in the same run. The rate counts the products that the method needs: a token with
// the representatives before it, T r d operations. And the selection of one token more, as decoding
// has it.
//
//   sluice_cuda_select_bench [most tokens [least tokens]]

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>

#include "backend/cuda/accelerated.h"
#include "backend/cuda/linear.h"
#include "plant.h"

namespace {

using namespace sluice;
using cuda::Context;

constexpr int64_t kModel = 4096, kLayers = 4;  // selectors that take turns
constexpr int kTurns = 11, kWarmUps = 2;
constexpr int64_t kMore = 64;  // tokens behind the others
static_assert(kTurns + kWarmUps <= kMore);

// Milliseconds of one of n runs between two events; the median of several such.
double time_runs(Context& context, int n, const std::function<void()>& before,
                 const std::function<void(int)>& run) {
  cudaEvent_t begin = nullptr, end = nullptr;
  cuda::check(cudaEventCreate(&begin), "event");
  cuda::check(cudaEventCreate(&end), "event");
  std::vector<double> times;
  for (int turn = -kWarmUps; turn < kTurns; ++turn) {
    before();
    context.synchronize();
    cuda::check(cudaEventRecord(begin, context.stream()), "event");
    for (int i = 0; i < n; ++i) run(i);
    cuda::check(cudaEventRecord(end, context.stream()), "event");
    context.synchronize();
    float ms = 0;
    cuda::check(cudaEventElapsedTime(&ms, begin, end), "event");
    if (turn >= 0) times.push_back(double{ms} / n);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// bf16 or f32 rows that live on the device.
struct Rows {
  Rows(const std::shared_ptr<Context>& context, DType dtype, int64_t n, int64_t width)
      : memory(context, n * width * element_bytes(dtype)),
        view(memory.data(), dtype, {n, width}, Device::kCuda) {}
  cuda::DeviceArray<std::byte> memory;
  Tensor view;
};

// TFLOP/s of a product of 8192 x 4096 with 4096 x 8192 random numbers.
double matrix_rate(const std::shared_ptr<Context>& context) {
  constexpr int64_t kSide = 8192;
  const cuda::DeviceMatrix weights(context, DType::kBF16, kSide, kModel);
  const Rows x(context, DType::kBF16, kSide, kModel), out(context, DType::kBF16, kSide, kSide);
  bench::fill_normal(*context, weights.rows, 5);
  bench::fill_normal(*context, x.view, 6);
  cuda::Multiplier multiplier(context);
  const double ms = time_runs(
      *context, 10, [] {},
      [&](int) {
        multiplier.run(weights, {}, {.weights = nullptr, .x = x.view, .out = out.view});
      });
  return 2.0 * kSide * kSide * kModel / ms * 1e-9;
}

void run_case(const std::shared_ptr<Context>& context, int64_t n_tokens, double share,
              bench::Spread spread, double ceiling) {
  const Rows rows(context, DType::kBF16, n_tokens, kModel);
  const Rows residual(context, DType::kF32, n_tokens, kModel);
  cuda::check(cudaMemsetAsync(residual.memory.data(), 1,
                              static_cast<size_t>(residual.memory.size()), context->stream()),
              "residual");
  const auto planted = static_cast<int64_t>(std::llround(share * static_cast<double>(n_tokens)));
  const std::vector<uint8_t> flags = bench::plant_rows(*context, rows.view, planted, spread);
  SelectorSpec spec;
  spec.taus = {bench::kPlantedTau};
  spec.d_model = kModel;
  // The set of the layer before, on the device as it would be.
  spec.rule = SelectRule::kFixed;
  const auto above = cuda::make_cuda_selector(context, spec);
  above->extend({.rows = rows.view, .residual = rows.view, .inherited = {flags}});
  const std::vector<uint8_t> more(kMore, 0);
  const ConstTensor next = rows.view.rows_from(n_tokens - kMore, kMore);
  above->extend({.rows = next, .residual = next, .inherited = {more}});
  spec.sinks = 4;
  std::printf("| %5lld%s |", static_cast<long long>(n_tokens),
              spread == bench::Spread::kSkewed ? " skewed" : "");
  double r = 0, one_ms = 0;
  for (const auto& [rule, outliers] :
       {std::pair(SelectRule::kCascadeCover, 0.0), std::pair(SelectRule::kCascadeCover, 8.0),
        std::pair(SelectRule::kGreedy, 0.0)}) {
    spec.rule = rule;
    spec.outlier_ratio = outliers;
    std::vector<std::unique_ptr<Selector>> selectors;
    for (int64_t i = 0; i < kLayers; ++i)
      selectors.push_back(cuda::make_cuda_selector(context, spec));
    SelectArgs args{.rows = rows.view, .residual = residual.view, .inherited = {}};
    if (inherits(rule)) args.inherited.emplace_back(*above, 0);
    const double ms = time_runs(
        *context, kLayers,
        [&] {
          for (const auto& selector : selectors) selector->reset();
        },
        [&](int i) { selectors[static_cast<size_t>(i)]->extend(args); });
    r = static_cast<double>(selectors[0]->sets()[0].n_clusters);
    const double rate = kModel * static_cast<double>(n_tokens) * r / ms * 1e-9;
    if (rule == SelectRule::kCascadeCover && outliers == 0)
      std::printf(" %.3f |", r / static_cast<double>(n_tokens));
    std::printf(
        " %7.1f us, %3.0f (%2.0f%%), %6.2f |", 1e3 * ms, rate, 100 * rate / ceiling,
        static_cast<double>(selectors[0]->products()) / (0.5 * static_cast<double>(n_tokens) * r));
    if (outliers == 0) continue;
    const ConstTensor row = rows.view.rows_from(n_tokens - 1, 1);
    args.rows = row;
    args.residual = residual.view.rows_from(n_tokens - 1, 1);
    one_ms = time_runs(
        *context, kLayers, [] {}, [&](int i) { selectors[static_cast<size_t>(i)]->extend(args); });
  }
  std::printf(" %5.1f us |", 1e3 * one_ms);
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int64_t most = argc > 1 ? std::stoll(argv[1]) : 32768;
    const int64_t least = argc > 2 ? std::stoll(argv[2]) : 0;
    const auto context = std::make_shared<Context>(0);
    const double ceiling = matrix_rate(context);
    std::printf(
        "%s\n\na matrix product: %.0f TFLOP/s. Beside each time: TFLOP/s of the products that are "
        "needed (share of that), and how many times as many were done\n\n",
        context->description().c_str(), ceiling);
    std::printf(
        "| T | r/T | cascade-cover | the same, outliers exempt | greedy | one token more |\n"
        "| --- | --- | --- | --- | --- | --- |\n");
    for (const int64_t n_tokens : {512, 2048, 8192, 32768})
      for (const double share : {0.25, 0.1})
        if (least <= n_tokens && n_tokens <= most)
          run_case(context, n_tokens, share, bench::Spread::kEven, ceiling);
    for (const int64_t n_tokens : {8192, 32768})
      if (least <= n_tokens && n_tokens <= most)
        run_case(context, n_tokens, 0.25, bench::Spread::kSkewed, ceiling);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
