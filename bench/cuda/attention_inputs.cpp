#include "cuda/attention_inputs.h"

#include <algorithm>

#include "backend/cuda/elementwise/elements.h"

namespace sluice::impl::bench {

Timing time_runs(Context& context, int rounds, const Run& run, const Run& less) {
  Stopwatch watch(context);
  size_t round = 0;
  const auto time_of = [&](const Run& work, int n) {
    return watch.milliseconds([&] {
      for (int i = 0; i < n; ++i) work(round + static_cast<size_t>(i));
    }) / n;
  };
  time_of(run, 4);
  const int at_once = std::clamp(static_cast<int>(8 / time_of(run, 4)), 1, 8);
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i, round += static_cast<size_t>(at_once)) {
    const double without = less ? time_of(less, kOfLess * at_once) : 0;
    times.push_back(time_of(run, at_once) - without);
  }
  return middle(times);
}

Inputs::Inputs(const std::shared_ptr<Context>& device, const AttentionShape& of, int n_samples)
    : context(device),
      shape(of),
      rounds(n_samples),
      weight(device, std::vector<float>(kModel, 1.0f)) {
  const int64_t n = shape.n_tokens, set_bytes = n * kModel * 2 * 4;
  const auto n_sets = std::clamp<int64_t>(1 + 2 * kCacheBytes / set_bytes, 3, 12);
  spec.rule = SelectRule::kCascadeCover;
  spec.taus = {kPlantedTau};
  spec.d_model = kModel;
  spec.sinks = 4;
  spec.outlier_ratio = 8;
  const KeysSpec keys{.n_heads = shape.n_heads(),
                      .n_kv_heads = shape.n_heads(),
                      .head_dim = shape.head_dim,
                      .dtype = DType::kBF16,
                      .scale = shape.scale(),
                      .causal = true,
                      .window = kWindow,
                      .block = kBlock,
                      .heads = std::vector<HeadKeys>(static_cast<size_t>(shape.n_heads()))};
  for (int64_t i = 0; i < n_sets; ++i) {
    Set set{.rows = {context, n, kModel},
            .qkv = {context, n, 3 * kModel},
            .out = {context, n, kModel},
            .residual_memory = {context, n * kModel},
            .squares_memory = {context, n * 4},
            .residual = {},
            .squares = {},
            .inherited = {},
            .selector = cuda::selection::make_selector(context, spec),
            .keys = cuda::keys::make_keys_attention(context, keys)};
    fill_normal(*context, set.qkv.view, static_cast<uint32_t>(3 + i));
    set.residual = Tensor(set.residual_memory.data(), DType::kF32, {n, kModel}, Device::kCuda);
    set.squares = Tensor(set.squares_memory.data(), DType::kF32, {n, 4}, Device::kCuda);
    plant(set);
    sets.push_back(std::move(set));
  }
}

void Inputs::plant(Set& set, const Near& near) {
  const auto n_reps = std::llround(shape.share * static_cast<double>(shape.n_tokens));
  set.inherited = plant_rows(*context, set.rows.view, n_reps, shape.spread, near);
  cuda::elementwise::convert(*context, set.rows.view, set.residual);
  norm(set, {});
}

void Inputs::norm(const Set& set, const Tensor& squares) const {
  cuda::elementwise::norm(
      *context, {.kind = NormKind::kRms,
                 .epsilon = 1e-5f,
                 .x = set.residual,
                 .weight = ConstTensor(weight.data(), DType::kF32, {kModel}, Device::kCuda),
                 .bias = {},
                 .out = set.rows.view,
                 .squares = squares});
}

void Inputs::move_to(const Near& near) {
  spec.basis = near.basis;
  for (Set& set : sets) {
    plant(set, near);
    set.selector = cuda::selection::make_selector(context, spec);
  }
}

}  // namespace sluice::impl::bench
