// A whole model at its true shapes with random weights: prefill and decoding, what of the
// arithmetic and of the memory's speed that is, and the memory it takes; the same under refined
// attention; then decoding by gates that are all open.
//
// Keys: "config": as in config.json, "n_tokens": [] of the prompts, "opened": share of the keys
// that refined decoding is to open, "gates": {"n_tokens", "rank"}. With "weights": [] of the types
// of weights (model/weight_type.h), prefill and decoding by each of them instead.

#include "model/model.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "cuda/case.h"
#include "cuda/memory.h"
#include "cuda/timing.h"
#include "eval/timing.h"
#include "model/linear_work.h"
#include "model/synthetic.h"
#include "model/weight_type.h"

namespace sluice::impl::bench {
namespace {

constexpr int64_t kDecodeTokens = 32;

std::vector<int32_t> random_tokens(int64_t vocab, int64_t n) {
  std::vector<int32_t> tokens;
  uint32_t state = 1;
  for (int64_t i = 0; i < n; ++i) {
    state = state * 1664525u + 1013904223u;
    tokens.push_back(static_cast<int32_t>(state >> 8) % static_cast<int32_t>(vocab));
  }
  return tokens;
}

Timing per_token(const Timing& all) {
  std::vector<double> times;
  for (const double ms : all.samples) times.push_back(ms / static_cast<double>(kDecodeTokens));
  return middle(times);
}

// Decodes kDecodeTokens; returns the ms that the host took to ask for them.
double decode_tokens(Model& model, KvCache& cache, int32_t token, const Buffer& scores) {
  double asked = 0;
  for (int64_t i = 0; i < kDecodeTokens; ++i) {
    ConstTensor hidden;
    asked += time_ms([&] { hidden = model.forward({&token, 1}, cache); });
    model.logits(hidden, scores.view());
  }
  return asked;
}

struct Dense {
  Timing prefill, step;
  double asked = 0;  // ms that the host took to ask for a token
  PoolMemory memory{};
};
Dense measure_dense(CudaCase& c, Model& model, int64_t n) {
  Backend& backend = model.backend();
  const std::vector<int32_t> tokens = random_tokens(model.spec().vocab, n);
  const Buffer scores = host_buffer(DType::kF32, {1, model.spec().vocab});
  pool_memory();  // what was in use before does not count
  KvCache cache = model.make_cache(1, n + kDecodeTokens);
  Dense dense;
  dense.prefill = time_waited(backend, c.rounds(n > 8192 ? 3 : 5), [&] {
    cache.truncate(0);
    model.forward(tokens, cache);
  });
  dense.step = per_token(time_waited(backend, c.rounds(3), [&] {
    cache.truncate(n);
    dense.asked = decode_tokens(model, cache, tokens[0], scores);
  }));
  dense.asked /= static_cast<double>(kDecodeTokens);
  dense.memory = pool_memory();
  return dense;
}

struct Refined {
  double prefill = 0, step = 0;  // ms
  double share = 0;              // of the keys, that decoding opened
};
// Random weights attend to everything alike, so delta is searched for until decoding opens about
// the share of keys that a trained model's does.
Refined measure_refined(Model& model, int64_t n, double opened) {
  const ModelSpec& spec = model.spec();
  const std::vector<int32_t> tokens = random_tokens(spec.vocab, n);
  const Buffer scores = host_buffer(DType::kF32, {1, spec.vocab});
  const auto opened_in = [&](const KvCache& cache) {
    double sum = 0;
    for (int64_t layer = 0; layer < spec.n_layers; ++layer)
      for (const int64_t count : cache.accelerated(layer)->refine(0).opened())
        sum += static_cast<double>(count);
    return sum;
  };
  double low = -20, high = 0;  // logarithms of delta
  Refined refined;
  for (int round = 0; round < 8; ++round) {
    UniformAttention choice;
    choice.mode = AttentionMode::kRefine;
    choice.delta = std::exp((low + high) / 2);
    KvCache cache =
        model.make_cache(1, n + 2 * kDecodeTokens, uniform_plan(choice, model.plan_shape()));
    model.backend().wait();
    refined.prefill = time_ms([&] {
      model.forward(tokens, cache);
      model.backend().wait();
    });
    decode_tokens(model, cache, tokens[0], scores);  // records a step
    const double before = opened_in(cache);
    refined.step = time_ms([&] { decode_tokens(model, cache, tokens[0], scores); }) /
                   static_cast<double>(kDecodeTokens);
    refined.share = (opened_in(cache) - before) /
                    static_cast<double>(spec.n_layers * spec.n_heads * kDecodeTokens * n);
    if (std::abs(refined.share - opened) < 0.1 * opened) break;
    (refined.share > opened ? low : high) = (low + high) / 2;
  }
  return refined;
}

// Bytes that a step reads: the weights, and keys and values of its middle token.
double step_bytes(const Model& model, int64_t n) {
  return static_cast<double>(model.weight_bytes() + KvCache::bytes_needed(model.spec(),
                                                                          DType::kBF16, 1,
                                                                          n + kDecodeTokens / 2));
}

void run_length(CudaCase& c, Model& model, int64_t n, double opened) {
  const ModelSpec& spec = model.spec();
  const Dense dense = measure_dense(c, model, n);
  const Refined refined = measure_refined(model, n, opened);
  // Two operations to a weight, the head's left out; causal scores and sums take half of all.
  const auto t = static_cast<double>(n), weights = static_cast<double>(model.weight_bytes());
  const double head = static_cast<double>(spec.vocab * spec.d_model);
  const double flops =
      2 * t * (weights / 2 - head) +
      2 * t * t * static_cast<double>(spec.n_layers * spec.n_heads * spec.head_dim);
  const double gflops = flops / dense.prefill.median * 1e-6;
  const double gb_per_s = step_bytes(model, n) / dense.step.median * 1e-6;
  c.table().row({fmt::format("{}", n), fmt::format("{:.1f}", dense.prefill.median),
                 fmt::format("{:.1f}", 1e-3 * gflops), fmt::format("{:.2f}", dense.step.median),
                 fmt::format("{:.2f}", 1e-3 * gb_per_s), fmt::format("{:.2f}", dense.asked),
                 fmt::format("{:.2f}", 1e-9 * dense.memory.used),
                 fmt::format("{:.2f}", 1e-9 * dense.memory.held),
                 fmt::format("{:.1f}", refined.prefill), fmt::format("{:.2f}", refined.step),
                 fmt::format("{:.1f}%", 100 * refined.share)});
  const auto record = [&](const std::string& test, const char* mode, const Timing& time,
                          nlohmann::json more) {
    const double tokens = test.starts_with("pp") ? t : 1;
    more.update({{"n_tokens", n}, {"tokens_per_s", 1e3 * tokens / time.median}});
    c.record(test, mode, time, std::move(more));
  };
  const std::string prefill = fmt::format("pp{}", n), decode = fmt::format("tg@{}", n);
  record(
      prefill, "dense", dense.prefill,
      {{"gflops", gflops}, {"used_bytes", dense.memory.used}, {"held_bytes", dense.memory.held}});
  record(decode, "dense", dense.step, {{"gb_per_s", gb_per_s}, {"asked_ms", dense.asked}});
  record(prefill, "refine", middle({refined.prefill}), {});
  record(decode, "refine", middle({refined.step}), {{"opened_fraction", refined.share}});
}

// Directions are a Hadamard matrix's, and an epsilon of 1 asks nothing of the rows: all pass.
struct OpenGates {
  OpenGates(const ModelSpec& spec, int64_t rank) {
    plan.layers.resize(static_cast<size_t>(spec.n_layers));
    for (int64_t layer = 0; layer < spec.n_layers; ++layer)
      for (const BasisInput input : kLinearInputs) {
        plan.layers[static_cast<size_t>(layer)].of(input) = {
            .kind = LinearKind::kGsi, .rank = rank, .epsilon = 1, .adaptive = 0};
        const auto d = static_cast<uint64_t>(spec.row_widths().of(input));
        Basis basis{.layer = layer,
                    .input = input,
                    .d = static_cast<int64_t>(d),
                    .rank = rank,
                    .vectors = {},
                    .spectrum = {}};
        const auto size = 1 / std::sqrt(static_cast<float>(d));
        for (uint64_t j = 0; j < static_cast<uint64_t>(rank); ++j)
          for (uint64_t i = 0; i < d; ++i)
            basis.vectors.push_back(std::popcount(i & j) % 2 == 0 ? size : -size);
        bases.list.push_back(std::move(basis));
      }
  }
  LinearPlan plan;
  Bases bases;
};

void run_gates(CudaCase& c, Model& model, int64_t n, int64_t rank) {
  const ModelSpec& spec = model.spec();
  const OpenGates gates(spec, rank);
  model.prepare_linear(gates.plan, &gates.bases);
  const std::vector<int32_t> tokens = random_tokens(spec.vocab, n);
  const Buffer scores = host_buffer(DType::kF32, {1, spec.vocab});
  KvCache cache = model.make_cache(1, n + kDecodeTokens, {}, gates.plan);
  std::vector<double> times, asking;
  LinearWork work;
  for (int round = -1; round < c.rounds(3); ++round) {  // the first warms up
    cache.truncate(0);
    model.forward(tokens, cache);
    model.backend().wait();
    double asked = 0;
    const double ms = time_ms([&] { asked = decode_tokens(model, cache, tokens[0], scores); });
    if (round >= 0) {
      times.push_back(ms);
      asking.push_back(asked);
    }
    work.add(cache, spec);
  }
  const Timing step = per_token(middle(times));
  const double asked = middle(asking).median / static_cast<double>(kDecodeTokens);
  c.table().say(fmt::format(
      "\n{} tokens, by gates of rank {}: decode {:.2f} ms a token, asked for in {:.2f} ms; "
      "{:.0f}% fast, {:.1f}% of the weights read",
      n, rank, step.median, asked, 100 * work.fast_path_fraction().value_or(0),
      100 * work.weight_bytes_fraction()));
  c.record(fmt::format("tg@{}", n), "gsi", step,
           {{"n_tokens", n},
            {"rank", rank},
            {"tokens_per_s", 1e3 / step.median},
            {"asked_ms", asked},
            {"fast_path_fraction", work.fast_path_fraction().value_or(0)},
            {"weight_bytes_fraction", work.weight_bytes_fraction()}});
}

void run_weight_types(CudaCase& c, const std::vector<int64_t>& lengths) {
  const auto checkpoint = synthetic_checkpoint(c.object("config"));
  c.table().columns(
      {"weights", "GB", "T", "prefill ms", "decode ms", "TB/s", "asked for in ms", "GB in use"});
  for (const std::string& name : c.keys().strings("weights")) {
    const std::optional<DType> type = weight_type_named(name);
    if (!type) throw Error(c.name() + ": there are no weights \"" + name + "\"", "q8_0, q4_k, …");
    Model model(checkpoint, make_cuda_backend(DType::kBF16), {.progress = {}, .weights = type});
    for (const int64_t n : lengths) {
      const Dense dense = measure_dense(c, model, n);
      const double gb_per_s = step_bytes(model, n) / dense.step.median * 1e-6;
      c.table().row({name, fmt::format("{:.2f}", 1e-9 * static_cast<double>(model.weight_bytes())),
                     fmt::format("{}", n), fmt::format("{:.1f}", dense.prefill.median),
                     fmt::format("{:.2f}", dense.step.median),
                     fmt::format("{:.2f}", 1e-3 * gb_per_s), fmt::format("{:.2f}", dense.asked),
                     fmt::format("{:.2f}", 1e-9 * dense.memory.used)});
      c.record(fmt::format("pp{}", n), name, dense.prefill, {{"n_tokens", n}});
      c.record(fmt::format("tg@{}", n), name, dense.step,
               {{"n_tokens", n}, {"gb_per_s", gb_per_s}});
    }
  }
}

}  // namespace

void run_model(CudaCase& c) {
  const std::vector<int64_t> lengths = integers(c.keys(), "n_tokens", 1, kMostTokens);
  if (c.keys().has("weights")) return run_weight_types(c, lengths);
  const double opened = c.keys().require_float("opened", 0, 1);
  const ConfigReader gates = c.object("gates");
  const int64_t rank = gates.require_int("rank", 1, kMostWidth);
  const int64_t gates_length = gates.require_int("n_tokens", 1, kMostTokens);
  const auto checkpoint = synthetic_checkpoint(c.object("config"));
  std::unique_ptr<Model> model;
  const double load_ms = time_ms([&] {
    model = std::make_unique<Model>(checkpoint, make_cuda_backend(DType::kBF16), LoadOptions{});
    model->backend().wait();
  });
  c.table().say(fmt::format("{} on {}: {:.2f} GB of weights, loaded in {:.1f} s", c.name(),
                            model->backend().description(),
                            1e-9 * static_cast<double>(model->weight_bytes()), 1e-3 * load_ms));
  c.table().columns({"T", "prefill ms", "TFLOP/s", "decode ms", "TB/s", "asked for in ms",
                     "GB in use", "GB held", "refined prefill ms", "refined decode ms",
                     "keys opened"});
  for (const int64_t n : lengths) run_length(c, *model, n, opened);
  run_gates(c, *model, gates_length, rank);
}

}  // namespace sluice::impl::bench
