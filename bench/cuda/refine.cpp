// Times refined attention against dense attention on one device: prefill and decode of one layer of
// 32 heads of 128 in bf16, everything counted: clustering, deciding, attending.
//
//   sluice_cuda_refine_bench [file] T:prefill:decode…
//
// For every length T the shares of dense attention's keys that opened clusters have, in prefill and
// in decode: those of a real model, which `sluice eval --attention refine` prints ("opened
// members"). Rows are random around planted centres; delta is searched for until the share opened
// is the one asked for. file: what sdpa.py wrote in the same session; prefill is compared with the
// fastest of PyTorch's attention and ours.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>

#include "backend/backend.h"
#include "plant.h"

namespace {

using namespace sluice::impl;
using namespace sluice::impl::bench;

constexpr int64_t kHeads = 32, kHeadDim = 128, kModel = kHeads * kHeadDim;
constexpr int64_t kLayers = 4;  // caches, one per decode step, cyclically: more than the L2 holds
constexpr int64_t kSteps = 64;  // of decode that there is room for
constexpr float kQuerySize = 4.0f;  // of queries: a softmax as sharp as a trained head's

struct Case {
  int64_t n_tokens;
  double prefill_opened, decode_opened;
};

struct Rows {
  Rows(const std::shared_ptr<cuda::Context>& context, int64_t n)
      : memory(context, n * kModel * 2),
        view(memory.data(), DType::kBF16, {n, kModel}, Device::kCuda) {}
  Tensor heads(int64_t first, int64_t n) const {
    return Tensor(view.row<BFloat16>(first), DType::kBF16, {n, kHeads, kHeadDim}, Device::kCuda);
  }
  cuda::DeviceArray<std::byte> memory;
  Tensor view;
};

// Milliseconds: the median of repeats of run(), with the device idle before and after.
double time_of(Backend& backend, int repeats, const std::function<void()>& run) {
  std::vector<double> times;
  for (int i = -1; i < repeats; ++i) {
    backend.wait();
    const auto begin = std::chrono::steady_clock::now();
    run();
    backend.wait();
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - begin;
    if (i >= 0) times.push_back(taken.count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

class Layer {
 public:
  Layer(const std::shared_ptr<cuda::Context>& context, Backend& backend, int64_t n)
      : context_(context),
        backend_(backend),
        n_(n),
        queries_(context, n + kSteps),
        keys_(context, n + kSteps),
        values_(context, n + kSteps),
        out_(context, n + kSteps) {
    plant_rows(*context, keys_.view, (n + kSteps) / 16, Spread::kEven);
    fill_normal(*context, queries_.view, 5);
    fill_normal(*context, values_.view, 6);
    context->synchronize();
  }

  std::unique_ptr<RefineAttention> make(double delta) const {
    RefineSpec spec{.n_heads = kHeads,
                    .n_kv_heads = kHeads,
                    .head_dim = kHeadDim,
                    .dtype = DType::kBF16,
                    .scale = kQuerySize / std::sqrt(static_cast<float>(kHeadDim)),
                    .capacity = n_ + kSteps,
                    .window = 0,
                    .segment = 512,
                    .early = 128,
                    .tile = 128,
                    .heads = {}};
    spec.heads.assign(kHeads, {.kind = HeadKind::kClusters, .delta = delta});
    return backend_.make_refine_attention(spec);
  }
  void attend(RefineAttention& attention, int64_t first, int64_t n) const {
    attention.attend({.queries = queries_.heads(first, n),
                      .keys = keys_.heads(first, n),
                      .values = values_.heads(first, n),
                      .out = out_.heads(first, n)});
  }
  // Share of dense attention's keys that queries from `first` on have opened since reset.
  static double opened_share(const RefineAttention& attention, int64_t first, int64_t n,
                             double opened_before) {
    double sum = -opened_before, dense = 0;
    for (const int64_t opened : attention.opened()) sum += static_cast<double>(opened);
    for (int64_t t = first; t < first + n; ++t) dense += static_cast<double>(t + 1);
    return sum / (dense * static_cast<double>(kHeads));
  }

  struct Found {
    double delta, share;
  };
  // Delta at which prefill, or the first decode steps behind it, open the share asked for.
  Found find_delta(double share, bool decode) const {
    double low = -14, high = 4;  // natural logarithms
    Found found{};
    for (int i = 0; i < 14; ++i) {
      found.delta = std::exp((low + high) / 2);
      const auto attention = make(found.delta);
      attend(*attention, 0, n_);
      double before = 0;
      if (decode) {
        for (const int64_t opened : attention->opened()) before += static_cast<double>(opened);
        for (int64_t t = n_; t < n_ + 8; ++t) attend(*attention, t, 1);
      }
      found.share =
          decode ? opened_share(*attention, n_, 8, before) : opened_share(*attention, 0, n_, 0);
      if (std::abs(found.share - share) < 0.02 * share) break;
      (found.share > share ? low : high) = (low + high) / 2;
    }
    return found;
  }

  double time_prefill(double delta) const {
    const auto attention = make(delta);
    return time_of(backend_, n_ > 65536 ? 5 : 11, [&] {
      attention->reset();
      attend(*attention, 0, n_);
    });
  }

  // Of one layer's step, recorded as whole models record theirs.
  double time_decode(double delta) const {
    std::vector<std::unique_ptr<RefineAttention>> layers;
    for (int64_t i = 0; i < kLayers; ++i) {
      layers.push_back(make(delta));
      attend(*layers.back(), 0, n_);
    }
    return time_steps([&](int64_t t) {
      for (const auto& layer : layers) attend(*layer, t, 1);
    });
  }

  struct DenseTimes {
    double prefill, decode;
  };
  DenseTimes time_dense() const {
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
                                 .scale = kQuerySize / std::sqrt(static_cast<float>(kHeadDim)),
                                 .out = out_.heads(first, n)});
    };
    DenseTimes times{};
    times.prefill = time_of(backend_, n_ > 65536 ? 3 : 11, [&] { run(caches[0], 0, n_); });
    for (const KvView& cache : caches) run(cache, 0, n_);
    times.decode = time_steps([&](int64_t t) {
      for (const KvView& cache : caches) run(cache, t, 1);
    });
    return times;
  }

 private:
  // Milliseconds of a layer's step, steps recorded and replayed one after another.
  double time_steps(const std::function<void(int64_t)>& step) const {
    step(n_);
    step(n_ + 1);
    const auto recording = backend_.recorder()->record([&] { step(n_ + 2); });
    const int n = kSteps - 4;
    const auto all = [&] {
      for (int i = 0; i < n; ++i) {
        if (recording != nullptr)
          recording->replay(n_ + 3 + i % (kSteps - 4));
        else
          step(n_ + 3 + i % (kSteps - 4));
      }
    };
    return time_of(backend_, recording != nullptr ? 11 : 1, all) / (n * kLayers);
  }

  std::shared_ptr<cuda::Context> context_;
  Backend& backend_;
  int64_t n_;
  Rows queries_, keys_, values_, out_;
};

// PyTorch's best, in ms; 0 where it is not known.
double best_elsewhere(const std::string& file, int64_t n) {
  std::ifstream lines(file);
  double best = 0, ms = 0;
  int64_t n_tokens = 0, n_heads = 0, head_dim = 0;
  std::string name;
  while (lines >> n_tokens >> n_heads >> head_dim >> ms >> name)
    if (n_tokens == n && n_heads == kHeads && head_dim == kHeadDim && (best == 0 || ms < best))
      best = ms;
  return best;
}

void run_case(const std::shared_ptr<cuda::Context>& context, Backend& backend, const Case& c,
              const std::string& file) {
  const Layer layer(context, backend, c.n_tokens);
  const Layer::DenseTimes dense = layer.time_dense();
  const Layer::Found prefill = layer.find_delta(c.prefill_opened, false);
  const double prefill_ms = layer.time_prefill(prefill.delta);
  const double means_ms = layer.time_prefill(HUGE_VAL);  // nothing opened
  const Layer::Found decode = layer.find_delta(c.decode_opened, true);
  const double decode_ms = layer.time_decode(decode.delta);
  const double elsewhere = best_elsewhere(file, c.n_tokens);
  const double best = elsewhere > 0 ? std::min(elsewhere, dense.prefill) : dense.prefill;
  std::printf(
      "| %6lld | %8.3f | %8.3f | %.3f | %8.3f | %8.3f | %5.2f | %7.1f | %.3f | %7.1f | %5.2f |\n",
      static_cast<long long>(c.n_tokens), elsewhere, dense.prefill, prefill.share, means_ms,
      prefill_ms, best / prefill_ms, 1e3 * dense.decode, decode.share, 1e3 * decode_ms,
      dense.decode / decode_ms);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::vector<Case> cases;
    std::string file;
    for (int i = 1; i < argc; ++i) {
      Case c{};
      long long n = 0;
      if (std::sscanf(argv[i], "%lld:%lf:%lf", &n, &c.prefill_opened, &c.decode_opened) != 3) {
        file = argv[i];
        continue;
      }
      c.n_tokens = n;
      cases.push_back(c);
    }
    const auto backend = make_cuda_backend(DType::kBF16);
    const auto context = std::make_shared<cuda::Context>(0);
    std::printf(
        "%s\n\nPrefill in ms, a decode step in us, of one layer of %lld heads of %lld; opened: "
        "share "
        "of dense attention's keys; speed-ups against the best dense attention (prefill) and ours "
        "(decode).\n\n| T | PyTorch | dense | opened | nothing opened | refine | speed-up | dense "
        "step | opened | refine step | speed-up |\n",
        context->description().c_str(), static_cast<long long>(kHeads),
        static_cast<long long>(kHeadDim));
    for (int column = 0; column < 11; ++column) std::printf("| --- ");
    std::printf("|\n");
    for (const Case& c : cases) run_case(context, *backend, c, file);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
