// Whole models at their true shapes with random weights on a CUDA device, bf16: prefill and
// decoding, what of the arithmetic and of the memory's speed that is, and the memory it takes; the
// same under refined attention; then decoding by gates of rank 256 that are all open.
//
//   sluice_cuda_model_bench [gptj-6b|opt-6.7b]… [T]…    without a name or a length: all

#include "model/model.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/timing.h"
#include "io/config.h"
#include "model/linear_work.h"
#include "model/synthetic.h"

namespace {

using namespace sluice::impl;

constexpr int64_t kLengths[] = {512, 2048, 8192, 32768};
constexpr int64_t kGatesLength = 512;
constexpr int64_t kDecodeTokens = 32;

// More positions than the originals have, so that long prompts can be timed.
struct Sample {
  const char* name;
  nlohmann::json config;
};
std::vector<Sample> shapes() {
  return {{"gptj-6b",
           {{"model_type", "gptj"},
            {"n_layer", 28},
            {"n_embd", 4096},
            {"n_head", 16},
            {"rotary_dim", 64},
            {"n_positions", 33000},
            {"vocab_size", 50400},
            {"tie_word_embeddings", false}}},
          {"opt-6.7b",
           {{"model_type", "opt"},
            {"num_hidden_layers", 32},
            {"hidden_size", 4096},
            {"word_embed_proj_dim", 4096},
            {"num_attention_heads", 32},
            {"ffn_dim", 16384},
            {"max_position_embeddings", 33000},
            {"activation_function", "relu"},
            {"do_layer_norm_before", true},
            {"vocab_size", 50272}}}};
}

std::vector<int32_t> random_tokens(int64_t vocab, int64_t n) {
  std::vector<int32_t> tokens;
  uint32_t state = 1;
  for (int64_t i = 0; i < n; ++i) {
    state = state * 1664525u + 1013904223u;
    tokens.push_back(static_cast<int32_t>(state >> 8) % static_cast<int32_t>(vocab));
  }
  return tokens;
}

// GB of device memory: what was in use at most since the last call, and what is held for it.
struct DeviceMemory {
  double used, held;
};
DeviceMemory device_memory() {
  cudaMemPool_t pool = nullptr;
  uint64_t used = 0, held = 0, none = 0;
  if (cudaDeviceGetDefaultMemPool(&pool, 0) != cudaSuccess ||
      cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &used) != cudaSuccess ||
      cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &held) != cudaSuccess ||
      cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &none) != cudaSuccess)
    throw sluice::Error("CUDA: asking for the memory in use");
  return {1e-9 * static_cast<double>(used), 1e-9 * static_cast<double>(held)};
}

double middle_ms(int repeats, Backend& backend, const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = -1; i < repeats; ++i) {
    backend.wait();
    const double ms = time_ms([&] {
      work();
      backend.wait();
    });
    if (i >= 0) times.push_back(ms);
  }
  return median(times);
}

// A token's time by gates that let every row pass: the directions are a Hadamard matrix's, and an
// epsilon of 1 asks nothing of the rows.
void bench_gates(Model& model, int64_t n) {
  constexpr int64_t kRank = 256;
  const ModelSpec& spec = model.spec();
  Bases bases;
  LinearPlan plan;
  plan.layers.resize(static_cast<size_t>(spec.n_layers));
  for (int64_t layer = 0; layer < spec.n_layers; ++layer)
    for (const BasisInput input : kLinearInputs) {
      plan.layers[static_cast<size_t>(layer)].of(input) = {
          .kind = LinearKind::kGsi, .rank = kRank, .epsilon = 1, .adaptive = 0};
      const auto d = static_cast<uint64_t>(spec.row_widths().of(input));
      Basis basis{.layer = layer,
                  .input = input,
                  .d = static_cast<int64_t>(d),
                  .rank = kRank,
                  .vectors = {},
                  .spectrum = {}};
      const auto size = 1 / std::sqrt(static_cast<float>(d));
      for (uint64_t j = 0; j < kRank; ++j)
        for (uint64_t i = 0; i < d; ++i)
          basis.vectors.push_back(std::popcount(i & j) % 2 == 0 ? size : -size);
      bases.list.push_back(std::move(basis));
    }
  model.prepare_linear(plan, &bases);
  const std::vector<int32_t> tokens = random_tokens(spec.vocab, n);
  const Buffer scores = host_buffer(DType::kF32, {1, spec.vocab});
  KvCache cache = model.make_cache(1, n + kDecodeTokens, {}, plan);
  std::vector<double> times, asking;
  LinearWork work;
  for (int round = 0; round < 4; ++round) {
    cache.truncate(0);
    model.forward(tokens, cache);
    model.backend().wait();
    double asked = 0;
    times.push_back(time_ms([&] {
      for (int64_t i = 0; i < kDecodeTokens; ++i) {
        ConstTensor hidden;
        asked += time_ms([&] { hidden = model.forward({tokens.data(), 1}, cache); });
        model.logits(hidden, scores.view());
      }
    }));
    asking.push_back(asked);
    work.add(cache, spec);
  }
  constexpr auto kTokens = static_cast<double>(kDecodeTokens);
  fmt::print(
      "{:>6} tokens, by gates of rank {}: decode {:.2f} ms a token, asked for in {:.2f} ms; "
      "{:.0f}% fast, {:.1f}% of the weights read\n",
      n, kRank, median(times) / kTokens, median(asking) / kTokens,
      100 * work.fast_path_fraction().value_or(0), 100 * work.weight_bytes_fraction());
}

// A token's time under refined attention. Random weights attend to everything alike, so delta is
// searched for until decoding opens about the share of keys that a trained model's does.
void bench_refined(Model& model, int64_t n) {
  constexpr double kOpened = 0.066;  // SmolLM2-135M at 8192 tokens and the default delta
  const ModelSpec& spec = model.spec();
  const std::vector<int32_t> tokens = random_tokens(spec.vocab, n);
  const Buffer scores = host_buffer(DType::kF32, {1, spec.vocab});
  const auto opened_in = [&](const KvCache& cache) {
    double sum = 0;
    for (int64_t layer = 0; layer < spec.n_layers; ++layer)
      for (const int64_t opened : cache.accelerated(layer)->refine(0).opened())
        sum += static_cast<double>(opened);
    return sum;
  };
  double low = -20, high = 0, prefill = 0, step = 0, share = 0;  // logarithms of delta
  for (int round = 0; round < 8; ++round) {
    UniformAttention choice;
    choice.mode = AttentionMode::kRefine;
    choice.delta = std::exp((low + high) / 2);
    KvCache cache =
        model.make_cache(1, n + 2 * kDecodeTokens, uniform_plan(choice, model.plan_shape()));
    model.backend().wait();
    prefill = time_ms([&] {
      model.forward(tokens, cache);
      model.backend().wait();
    });
    const auto decode = [&] {
      for (int64_t i = 0; i < kDecodeTokens; ++i)
        model.logits(model.forward({tokens.data(), 1}, cache), scores.view());
    };
    decode();  // records a step
    const double before = opened_in(cache);
    step = time_ms(decode) / static_cast<double>(kDecodeTokens);
    share = (opened_in(cache) - before) /
            static_cast<double>(spec.n_layers * spec.n_heads * kDecodeTokens * n);
    if (std::abs(share - kOpened) < 0.1 * kOpened) break;
    (share > kOpened ? low : high) = (low + high) / 2;
  }
  fmt::print(
      "{:>6} tokens, refined: prefill {:.1f} ms; decode {:.2f} ms a token, {:.1f}% of the keys "
      "opened\n",
      n, prefill, step, 100 * share);
}

void bench(const Sample& shape, const std::vector<int64_t>& lengths) {
  const ConfigReader config(shape.config, shape.name);
  const auto checkpoint = synthetic_checkpoint(config);
  const auto start = std::chrono::steady_clock::now();
  Model model(checkpoint, make_cuda_backend(DType::kBF16), {});
  Backend& backend = model.backend();
  backend.wait();
  const ModelSpec& spec = model.spec();
  fmt::print("\n{} on {}: {:.2f} GB of weights, loaded in {:.1f} s\n", shape.name,
             backend.description(), 1e-9 * static_cast<double>(model.weight_bytes()),
             std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  const auto weights = static_cast<double>(model.weight_bytes());
  const Buffer scores = host_buffer(DType::kF32, {1, spec.vocab});
  for (const int64_t n : lengths) {
    const std::vector<int32_t> tokens = random_tokens(spec.vocab, n);
    KvCache cache = model.make_cache(1, n + kDecodeTokens);
    const double prefill = middle_ms(n > 8192 ? 2 : 5, backend, [&] {
      cache.truncate(0);
      model.forward(tokens, cache);
    });
    // Two operations to a weight, the head's left out; causal scores and sums take half of all.
    const double head = static_cast<double>(spec.vocab * spec.d_model);
    const double pairs = static_cast<double>(n) * static_cast<double>(n) / 2;
    const double flops =
        2 * static_cast<double>(n) * (weights / 2 - head) +
        4 * pairs * static_cast<double>(spec.n_layers * spec.n_heads * spec.head_dim);
    double asked = 0;  // ms that the host took to ask for the tokens
    const double decode = middle_ms(3, backend, [&] {
      cache.truncate(n);
      asked = 0;
      for (int64_t i = 0; i < kDecodeTokens; ++i) {
        ConstTensor hidden;
        asked += time_ms([&] { hidden = model.forward({tokens.data(), 1}, cache); });
        model.logits(hidden, scores.view());
      }
    });
    const double step = decode / static_cast<double>(kDecodeTokens);
    const double bytes = weights + static_cast<double>(KvCache::bytes_needed(
                                       spec, DType::kBF16, 1, n + kDecodeTokens / 2));
    const DeviceMemory memory = device_memory();
    fmt::print(
        "{:>6} tokens: prefill {:>8.1f} ms, {:>6.1f} TFLOP/s; decode {:>6.2f} ms a token, "
        "{:.2f} TB/s, asked for in {:.2f} ms; {:.2f} GB in use, {:.2f} held\n",
        n, prefill, flops / prefill * 1e-9, step, bytes / step * 1e-9,
        asked / static_cast<double>(kDecodeTokens), memory.used, memory.held);
    bench_refined(model, n);
  }
  bench_gates(model, kGatesLength);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::vector<std::string> names;
    std::vector<int64_t> lengths;
    for (const std::string& argument : std::vector<std::string>(argv + 1, argv + argc))
      if (argument.find_first_not_of("0123456789") == std::string::npos)
        lengths.push_back(std::stoll(argument));
      else
        names.push_back(argument);
    if (lengths.empty()) lengths.assign(std::begin(kLengths), std::end(kLengths));
    for (const Sample& shape : shapes())
      if (names.empty() || std::find(names.begin(), names.end(), shape.name) != names.end())
        bench(shape, lengths);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "sluice_cuda_model_bench: {}\n", error.what());
    return 1;
  }
}
