#include "model_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "baselines.h"
#include "core/peak_memory.h"
#include "eval/timing.h"
#include "model/model.h"
#include "model/synthetic.h"
#include "timed_model.h"

namespace sluice::impl::bench {
namespace {

class ModelCase {
 public:
  ModelCase(const nlohmann::json& description, int repeat, nlohmann::json& results)
      : repeat_(repeat),
        name_(description.at("name")),
        description_(description),
        results_(results) {}

  void run() {
    const auto checkpoint = description_.contains("model") ? stored() : synthetic();
    for (const std::string dtype : description_.at("dtypes")) {
      dtype_ = dtype_of(dtype);
      if (description_.contains("model")) memory(checkpoint);
      Model model(checkpoint, make_cpu_backend(dtype_), {});
      for (const int64_t n_tokens : description_.at("prefill")) prefill(model, n_tokens);
      for (const int64_t n_tokens : description_.at("decode")) decode(model, n_tokens);
    }
  }

 private:
  static constexpr int64_t kDecodeSteps = 16;

  std::shared_ptr<const Checkpoint> stored() const {
    return open_checkpoint(ConfigReader(description_, name_).require_string("model"));
  }
  std::shared_ptr<const Checkpoint> synthetic() const {
    return synthetic_checkpoint(ConfigReader(description_.at("config"), name_));
  }

  // The most that loading, prefill and decoding take, without baselines, against the bound that a
  // model with its weights as they are stored keeps.
  void memory(const std::shared_ptr<const Checkpoint>& checkpoint) {
    const auto prefills = description_.at("prefill").get<std::vector<int64_t>>();
    const auto depths = description_.at("decode").get<std::vector<int64_t>>();
    int64_t capacity = 1;
    for (const int64_t n : prefills) capacity = std::max(capacity, n);
    for (const int64_t n : depths) capacity = std::max(capacity, n + kDecodeSteps);
    restart_peak_memory();
    TimedModel timed(checkpoint, dtype_, capacity);
    for (const int64_t n : prefills) timed.prefill_ms(n);
    for (const int64_t n : depths) timed.decode_ms(n, kDecodeSteps);
    const int64_t peak = peak_memory_bytes(), file = weight_file_bytes(*checkpoint);
    const double bound = peak_memory_bound(file, timed.cache_bytes());
    fmt::print(
        "{:<16} {:>5} {:>8} {:>10.1f} MB, file {:.1f} MB, cache {:.1f} MB: {:.0f}% of 1.1 x file + "
        "cache + 64 MB\n",
        name_, dtype_name(dtype_), "memory", static_cast<double>(peak) * 1e-6,
        static_cast<double>(file) * 1e-6, static_cast<double>(timed.cache_bytes()) * 1e-6,
        100 * static_cast<double>(peak) / bound);
    results_["memory"].push_back({{"name", name_},
                                  {"dtype", dtype_name(dtype_)},
                                  {"n_tokens", capacity},
                                  {"peak_bytes", peak},
                                  {"file_bytes", file},
                                  {"cache_bytes", timed.cache_bytes()},
                                  {"bound_bytes", bound}});
  }

  void prefill(Model& model, int64_t n_tokens) {
    const std::vector<int32_t> tokens = benchmark_tokens(n_tokens, model.spec().vocab);
    KvCache cache = model.make_cache(1, n_tokens);
    const double flops =
        linear_flops(model.spec(), n_tokens) + attention_flops(model.spec(), n_tokens);
    const auto baselines = bare_products(model.spec(), dtype_, n_tokens);
    std::vector<std::function<void()>> pieces = {[&] {
      cache.truncate(0);
      model.forward(tokens, cache);
    }};
    for (const auto& baseline : baselines) pieces.emplace_back([&] { baseline->run(); });
    std::vector<std::vector<double>> bare = time_interleaved(repeat_, pieces);
    const std::vector<double> samples = std::move(bare.front());
    bare.erase(bare.begin());
    size_t best = 0;
    for (size_t b = 1; b < bare.size(); ++b)
      if (median(bare[b]) < median(bare[best])) best = b;
    const double bare_flops = linear_flops(model.spec(), n_tokens);
    const Ratio time_ratio = ratio_of(bare[best], samples);
    const double scale = flops / bare_flops;  // times to rates
    std::string others;
    for (size_t b = 0; b < bare.size(); ++b)
      others += fmt::format("{}{} {:.1f}", b ? ", " : "", baselines[b]->name(),
                            bare_flops / median(bare[b]) * 1e-6);
    fmt::print(
        "{:<16} {:>5} {:>8} {:>10.1f} ms {:>9.1f} tok/s {:>8.1f} GFLOP/s  {:>4.0f}% "
        "({:.0f}-{:.0f}) of bare products: {}\n",
        name_, dtype_name(dtype_), fmt::format("pp{}", n_tokens), median(samples),
        1e3 * static_cast<double>(n_tokens) / median(samples), flops / median(samples) * 1e-6,
        100 * time_ratio.middle * scale, 100 * time_ratio.low * scale,
        100 * time_ratio.high * scale, others);
    record(fmt::format("pp{}", n_tokens), n_tokens, samples,
           {{"gflops", flops / median(samples) * 1e-6},
            {"baseline", baselines[best]->name()},
            {"baseline_gflops", bare_flops / median(bare[best]) * 1e-6},
            {"share_of_baseline", time_ratio.middle * scale}});
  }

  void decode(Model& model, int64_t n_tokens) {
    // An empty context has a token to decode all the same.
    const std::vector<int32_t> tokens =
        benchmark_tokens(std::max<int64_t>(n_tokens, 1), model.spec().vocab);
    const int64_t n_steps = kDecodeSteps;
    KvCache cache = model.make_cache(1, n_tokens + n_steps);
    const Buffer scores = host_buffer(DType::kF32, {1, model.spec().vocab});
    if (n_tokens > 0) model.forward(tokens, cache);
    // What a step must read: all weights, and the keys and values so far.
    const int64_t bytes = model.weight_bytes() +
                          KvCache::bytes_needed(model.spec(), dtype_, 1, n_tokens + n_steps / 2);
    const PlainRead read(bytes);
    uint64_t sum = 0;
    auto timed = time_interleaved(
        repeat_, {[&] {
                    cache.truncate(n_tokens);
                    for (int64_t step = 0; step < n_steps; ++step)
                      model.logits(model.forward({tokens.data(), 1}, cache), scores.view());
                  },
                  [&] { sum += read.run(); }});
    std::vector<double>&samples = timed[0], &reads = timed[1];
    for (double& ms : samples) ms /= static_cast<double>(n_steps);
    const Ratio ratio = ratio_of(reads, samples);
    const double gb = static_cast<double>(bytes) * 1e-6;
    fmt::print(
        "{:<16} {:>5} {:>8} {:>10.2f} ms {:>9.1f} tok/s {:>8.1f} GB/s     {:>4.0f}% "
        "({:.0f}-{:.0f}) of a plain read: {:.1f} GB/s{}\n",
        name_, dtype_name(dtype_), fmt::format("tg@{}", n_tokens), median(samples),
        1e3 / median(samples), gb / median(samples), 100 * ratio.middle, 100 * ratio.low,
        100 * ratio.high, gb / median(reads), sum == 1 ? " " : "");
    record(fmt::format("tg@{}", n_tokens), n_tokens, samples,
           {{"gb_per_s", gb / median(samples)},
            {"baseline", "plain read"},
            {"baseline_gb_per_s", gb / median(reads)},
            {"share_of_baseline", ratio.middle}});
  }

  void record(const std::string& test, int64_t n_tokens, const std::vector<double>& samples,
              nlohmann::json extra) {
    extra["name"] = name_ + " " + test;
    extra["dtype"] = dtype_name(dtype_);
    extra["n_tokens"] = n_tokens;
    extra["mode"] = "dense";
    extra["samples_ms"] = samples;
    extra["median_ms"] = median(samples);
    const int64_t per_sample = test.starts_with("pp") ? n_tokens : 1;
    extra["tokens_per_s"] = 1e3 * static_cast<double>(per_sample) / median(samples);
    results_["cases"].push_back(std::move(extra));
  }

  int repeat_;
  std::string name_;
  const nlohmann::json& description_;
  nlohmann::json& results_;
  DType dtype_ = DType::kF32;
};

}  // namespace

void run_model_case(const nlohmann::json& description, int repeat, nlohmann::json& results) {
  ModelCase(description, repeat, results).run();
}

}  // namespace sluice::impl::bench
