#include "cuda/refine_layer.h"

#include <cmath>
#include <vector>

#include "cuda/timing.h"

namespace sluice::impl::bench {
namespace {

constexpr int64_t kLayers = 4;  // caches, one per decode step, cyclically: more than the L2 holds
constexpr int64_t kSteps = 64;  // of decode that there is room for
constexpr float kQuerySize = 4.0f;  // of queries: a softmax as sharp as a trained head's

float scale() { return kQuerySize / std::sqrt(static_cast<float>(RefineLayer::kHeadDim)); }

double sum_of(const std::vector<int64_t>& opened) {
  double sum = 0;
  for (const int64_t n : opened) sum += static_cast<double>(n);
  return sum;
}

}  // namespace

RefineLayer::RefineLayer(const std::shared_ptr<cuda::Context>& context, Backend& backend,
                         int64_t n_tokens, int rounds)
    : backend_(backend),
      n_(n_tokens),
      rounds_(rounds),
      queries_(context, n_ + kSteps),
      keys_(context, n_ + kSteps),
      values_(context, n_ + kSteps),
      out_(context, n_ + kSteps) {
  plant_rows(*context, keys_.view, (n_ + kSteps) / 16, Spread::kEven);
  fill_normal(*context, queries_.view, 5);
  fill_normal(*context, values_.view, 6);
  context->synchronize();
}

std::unique_ptr<RefineAttention> RefineLayer::make(double delta) const {
  RefineSpec spec{.n_heads = kHeads,
                  .n_kv_heads = kHeads,
                  .head_dim = kHeadDim,
                  .dtype = DType::kBF16,
                  .scale = scale(),
                  .capacity = n_ + kSteps,
                  .window = 0,
                  .segment = 512,
                  .early = 128,
                  .tile = 128,
                  .heads = {}};
  spec.heads.assign(kHeads, {.kind = HeadKind::kClusters, .delta = delta});
  return backend_.make_refine_attention(spec);
}

void RefineLayer::attend(RefineAttention& attention, int64_t first, int64_t n) const {
  attention.attend({.queries = queries_.heads(first, n),
                    .keys = keys_.heads(first, n),
                    .values = values_.heads(first, n),
                    .out = out_.heads(first, n)});
}

RefineLayer::Found RefineLayer::find_delta(double share, bool decode) const {
  constexpr int64_t kTried = 8;  // decode steps
  const int64_t first = decode ? n_ : 0, end = decode ? n_ + kTried : n_;
  double dense = 0;  // keys that dense attention reads
  for (int64_t t = first; t < end; ++t) dense += static_cast<double>((t + 1) * kHeads);
  double low = -14, high = 4;  // natural logarithms
  Found found{};
  for (int i = 0; i < 14; ++i) {
    found.delta = std::exp((low + high) / 2);
    const auto attention = make(found.delta);
    attend(*attention, 0, n_);
    const double before = decode ? sum_of(attention->opened()) : 0;
    for (int64_t t = n_; t < end; ++t) attend(*attention, t, 1);
    found.share = (sum_of(attention->opened()) - before) / dense;
    if (std::abs(found.share - share) < 0.02 * share) break;
    (found.share > share ? low : high) = (low + high) / 2;
  }
  return found;
}

Timing RefineLayer::time_prefill(double delta) const {
  const auto attention = make(delta);
  return time_waited(backend_, rounds(n_ > 65536 ? 5 : 11), [&] {
    attention->reset();
    attend(*attention, 0, n_);
  });
}

Timing RefineLayer::time_decode(double delta) const {
  std::vector<std::unique_ptr<RefineAttention>> layers;
  for (int64_t i = 0; i < kLayers; ++i) {
    layers.push_back(make(delta));
    attend(*layers.back(), 0, n_);
  }
  return time_steps([&](int64_t t) {
    for (const auto& layer : layers) attend(*layer, t, 1);
  });
}

RefineLayer::DenseTimes RefineLayer::time_dense() const {
  const Shape shape = {1, kHeads, n_ + kSteps, kHeadDim};
  std::vector<KvView> caches;
  std::vector<Buffer> buffers;
  for (int64_t i = 0; i < kLayers; ++i) {
    buffers.push_back(backend_.allocate(DType::kBF16, shape));
    buffers.push_back(backend_.allocate(DType::kBF16, shape));
    caches.push_back({buffers[buffers.size() - 2].view(), buffers.back().view()});
  }
  const auto run = [&](const KvView& cache, int64_t first, int64_t n) {
    backend_.store_and_attend(nullptr,
                              {.keys = keys_.heads(first, n),
                               .values = values_.heads(first, n),
                               .n_tokens = n,
                               .first_position = first,
                               .cache = cache},
                              {.queries = queries_.heads(first, n),
                               .cache = cache,
                               .n_tokens = n,
                               .first_position = first,
                               .causal = true,
                               .scale = scale(),
                               .out = out_.heads(first, n)});
  };
  DenseTimes times;
  times.prefill =
      time_waited(backend_, rounds(n_ > 65536 ? 3 : 11), [&] { run(caches[0], 0, n_); });
  for (const KvView& cache : caches) run(cache, 0, n_);
  times.decode = time_steps([&](int64_t t) {
    for (const KvView& cache : caches) run(cache, t, 1);
  });
  return times;
}

Timing RefineLayer::time_steps(const std::function<void(int64_t)>& step) const {
  step(n_);
  step(n_ + 1);
  const auto recording = backend_.recorder()->record([&] { step(n_ + 2); });
  constexpr int kReplayed = kSteps - 4;
  const Timing all = time_waited(backend_, recording != nullptr ? rounds(11) : 1, [&] {
    for (int i = 0; i < kReplayed; ++i) {
      if (recording != nullptr)
        recording->replay(n_ + 3 + i);
      else
        step(n_ + 3 + i);
    }
  });
  std::vector<double> times;
  for (const double ms : all.samples) times.push_back(ms / (kReplayed * kLayers));
  return middle(times);
}

}  // namespace sluice::impl::bench
