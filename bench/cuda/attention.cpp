// Times selection and attention on representatives against dense attention, on one device, at
// planted redundancy: medians of device events, and beside each speed-up the ratio of operations.
//
//   sluice_cuda_attention_bench [most tokens [least tokens]]

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>

#include "backend/cuda/accelerated.h"
#include "backend/cuda/attend_dense.h"
#include "backend/cuda/elements.h"
#include "plant.h"

namespace {

using namespace sluice;
using cuda::Context;

constexpr int64_t kModel = 4096, kWindow = 128, kBlock = 128;

struct Timing {
  double median, spread;  // ms; the middle half over the median
};

Timing time_runs(Context& context, const std::function<void()>& run, int repeats = 11) {
  cudaEvent_t begin = nullptr, end = nullptr;
  cuda::check(cudaEventCreate(&begin), "event");
  cuda::check(cudaEventCreate(&end), "event");
  std::vector<double> times;
  for (int turn = -3; turn < repeats; ++turn) {
    cuda::check(cudaEventRecord(begin, context.stream()), "event");
    run();
    cuda::check(cudaEventRecord(end, context.stream()), "event");
    context.synchronize();
    float ms = 0;
    cuda::check(cudaEventElapsedTime(&ms, begin, end), "event");
    if (turn >= 0) times.push_back(ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  return {median, (times[times.size() * 3 / 4] - times[times.size() / 4]) / median};
}

// bf16 rows that live on the device.
struct Rows {
  Rows(const std::shared_ptr<Context>& context, int64_t n, int64_t width)
      : memory(context, n * width * 2),
        view(memory.data(), DType::kBF16, {n, width}, Device::kCuda) {}
  Tensor heads(int64_t first, int64_t n_heads, int64_t head_dim) const {
    return Tensor(view.bytes() + 2 * first, DType::kBF16, {view.rows(), n_heads, head_dim},
                  Device::kCuda)
        .with_row_stride(view.row_stride());
  }
  cuda::DeviceArray<std::byte> memory;
  Tensor view;
};

// Operations, a multiplication and an addition counting as two.
double keys_flops(int64_t n_tokens, double n_reps) {
  double keys = 0;
  for (int64_t t = 0; t < n_tokens; ++t) {
    const int64_t border = near_border(t, kWindow, kBlock);
    keys += static_cast<double>(border) * n_reps / static_cast<double>(n_tokens) +
            static_cast<double>(t - border + 1);
  }
  return 4.0 * kModel * keys;
}

void run_case(const std::shared_ptr<Context>& context, int64_t n_tokens, int64_t head_dim,
              double share) {
  const int64_t n_heads = kModel / head_dim;
  const Rows rows(context, n_tokens, kModel), qkv(context, n_tokens, 3 * kModel),
      out(context, n_tokens, kModel);
  const auto planted = static_cast<int64_t>(std::llround(share * static_cast<double>(n_tokens)));
  const std::vector<uint8_t> inherited = bench::plant_rows(*context, rows.view, planted);
  bench::fill_normal(*context, qkv.view, 3);
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
  const Tensor queries = qkv.heads(0, n_heads, head_dim);
  const Tensor keys = qkv.heads(kModel, n_heads, head_dim);
  const Tensor values = qkv.heads(2 * kModel, n_heads, head_dim);
  const Tensor attended = out.heads(0, n_heads, head_dim);

  SelectorSpec spec;
  spec.rule = SelectRule::kCascadeCover;
  spec.taus = {bench::kPlantedTau};
  spec.d_model = kModel;
  spec.sinks = 4;
  const auto selector = cuda::make_cuda_selector(context, spec);
  const Timing select = time_runs(*context, [&] {
    selector->reset();
    selector->extend({.rows = rows.view, .residual = rows.view, .inherited = {inherited}});
  });
  const auto attention = cuda::make_cuda_keys_attention(
      context, {.n_heads = n_heads,
                .n_kv_heads = n_heads,
                .head_dim = head_dim,
                .dtype = DType::kBF16,
                .scale = scale,
                .causal = true,
                .window = kWindow,
                .block = kBlock,
                .heads = std::vector<HeadKeys>(static_cast<size_t>(n_heads))});
  const Timing far = time_runs(*context, [&] {
    attention->reset();
    attention->attend(
        {.queries = queries, .keys = keys, .values = values, .sets = *selector, .out = attended});
  });
  // A token that follows. The border stays where it is, so the sets need not go on.
  const Timing step = time_runs(*context, [&] {
    attention->attend({.queries = queries.rows_from(0, 1),
                       .keys = keys.rows_from(0, 1),
                       .values = values.rows_from(0, 1),
                       .sets = *selector,
                       .out = attended.rows_from(0, 1)});
  });
  const Rows cache(context, 2 * n_tokens, kModel);
  const auto cached = [&](int64_t first) {
    return Tensor(cache.view.row<BFloat16>(first), DType::kBF16, {1, n_heads, n_tokens, head_dim},
                  Device::kCuda);
  };
  const KvView kv{cached(0), cached(n_tokens)};
  const Timing dense = time_runs(*context, [&] {
    cuda::store_kv(
        *context,
        {.keys = keys, .values = values, .n_tokens = n_tokens, .first_position = 0, .cache = kv});
    cuda::attend_dense(*context, {.queries = queries,
                                  .cache = kv,
                                  .n_tokens = n_tokens,
                                  .first_position = 0,
                                  .causal = true,
                                  .scale = scale,
                                  .out = attended});
  });
  const TokenSet& set = selector->sets()[0];
  const auto reps = cuda::make_cuda_reps_attention(context, {.n_heads = n_heads,
                                                             .n_kv_heads = n_heads,
                                                             .head_dim = head_dim,
                                                             .dtype = DType::kBF16,
                                                             .scale = scale});
  const int64_t n_rows = set.n_clusters;
  const Timing copy = time_runs(*context, [&] {
    reps->reset();
    reps->attend({.queries = queries.rows_from(0, n_rows),
                  .keys = keys.rows_from(0, n_rows),
                  .values = values.rows_from(0, n_rows),
                  .set = &set,
                  .first_token = 0,
                  .out = attended.rows_from(0, n_rows)});
  });

  const auto t = static_cast<double>(n_tokens), r = static_cast<double>(n_rows);
  const double dense_flops = 2.0 * kModel * t * t, far_flops = keys_flops(n_tokens, r);
  const double select_flops = kModel * t * r, copy_flops = 2.0 * kModel * r * r;
  const double multiplied = 2.0 * kModel * static_cast<double>(selector->products());
  const auto rate = [](double flops, const Timing& timing) { return flops / timing.median * 1e-9; };
  const double spread = std::max({dense.spread, select.spread, far.spread, copy.spread});
  std::printf(
      "| %5lld | %2lld x %3lld | %.3f | %8.3f (%3.0f) | %8.3f (%3.0f) | %8.3f (%3.0f) | %8.3f "
      "(%3.0f) | %5.2f [%5.2f] | %5.2f [%5.2f] | %6.1f | %.2f |\n",
      static_cast<long long>(n_tokens), static_cast<long long>(n_heads),
      static_cast<long long>(head_dim), r / t, dense.median, rate(dense_flops, dense),
      select.median, rate(multiplied, select), far.median, rate(far_flops, far), copy.median,
      rate(copy_flops, copy), dense.median / (select.median + far.median),
      dense_flops / (select_flops + far_flops), dense.median / far.median, dense_flops / far_flops,
      1e3 * step.median, spread);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int64_t most = argc > 1 ? std::stoll(argv[1]) : 32768;
    const int64_t least = argc > 2 ? std::stoll(argv[2]) : 0;
    const auto context = std::make_shared<Context>(0);
    std::printf("%s\n\nms (TFLOP/s); speed-ups [ratio of operations]; a decoding step in us\n\n",
                context->description().c_str());
    std::printf(
        "| T | heads | r/T | dense | select | keys | reps | keys, validated | keys, reused | step "
        "| "
        "spread |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (const int64_t head_dim : {128, 256})
      for (const int64_t n_tokens : {512, 2048, 8192, 32768})
        for (const double share : {0.25, 0.1})
          if (least <= n_tokens && n_tokens <= most) run_case(context, n_tokens, head_dim, share);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
