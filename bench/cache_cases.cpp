#include "cache_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "baselines.h"
#include "core/threads.h"
#include "eval/timing.h"
#include "plan/attention_plan.h"
#include "table.h"

namespace sluice::impl::bench {
namespace {

struct Sizes {
  int64_t n_heads, n_kv_heads, head_dim, n_layers, n_tokens;
};

Buffer random_rows(Backend& backend, const Shape& shape, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const Buffer exact = host_buffer(DType::kF32, shape);
  std::generate_n(exact.view().data<float>(), shape.numel(), [&] { return normal(random); });
  Buffer rows = backend.allocate(backend.compute_dtype(), shape);
  backend.convert(exact.view(), rows.view());
  return rows;
}

// Caches of all layers, and the query of the last token.
class Caches {
 public:
  Caches(Backend& backend, const Sizes& sizes, CacheKind kind) : backend_(backend), sizes_(sizes) {
    const Shape rows{1, sizes.n_kv_heads, sizes.n_tokens, sizes.head_dim};
    const bool int8 = kind == CacheKind::kInt8;
    const Shape scales{1, sizes.n_kv_heads, int8 ? sizes.n_tokens : 0};
    const Buffer keys = random_rows(backend, {sizes.n_tokens, sizes.n_kv_heads, sizes.head_dim}, 1);
    for (int64_t layer = 0; layer < sizes.n_layers; ++layer) {
      Layer& to = layers_.emplace_back();
      for (Buffer* part : {&to.keys, &to.values})
        *part = backend.allocate(int8 ? DType::kI8 : backend.compute_dtype(), rows);
      for (Buffer* part : {&to.key_scales, &to.value_scales})
        *part = backend.allocate(DType::kF32, scales);
      backend.store_kv({.keys = keys.view(),
                        .values = keys.view(),
                        .n_tokens = sizes.n_tokens,
                        .first_position = 0,
                        .cache = to.view()});
    }
    queries_ = random_rows(backend, {1, sizes.n_heads, sizes.head_dim}, 2);
    out_ = backend.allocate(backend.compute_dtype(), {1, sizes.n_heads, sizes.head_dim});
  }

  int64_t bytes() const {
    int64_t sum = 0;
    for (const Layer& layer : layers_)
      for (const Buffer* part : layer.parts())
        sum += part->view().shape().numel() * element_bytes(part->view().dtype());
    return sum;
  }
  void attend() {
    for (const Layer& layer : layers_)
      backend_.attend_dense({.queries = queries_.view(),
                             .cache = layer.view(),
                             .n_tokens = 1,
                             .first_position = sizes_.n_tokens - 1,
                             .causal = true,
                             .scale = 1 / std::sqrt(static_cast<float>(sizes_.head_dim)),
                             .out = out_.view()});
  }
  uint64_t read() const {
    std::vector<std::span<const uint64_t>> parts;
    for (const Layer& layer : layers_)
      for (const Buffer* part : layer.parts()) {
        const int64_t bytes = part->view().shape().numel() * element_bytes(part->view().dtype());
        parts.emplace_back(reinterpret_cast<const uint64_t*>(part->view().bytes()),
                           static_cast<size_t>(bytes / 8));
      }
    std::atomic<uint64_t> total = 0;
    parallel_each(std::ssize(parts),
                  [&](int64_t i) { total += read_in_streams(parts[static_cast<size_t>(i)]); });
    return total;
  }

 private:
  struct Layer {
    Buffer keys, values, key_scales, value_scales;
    std::array<const Buffer*, 4> parts() const {
      return {&keys, &values, &key_scales, &value_scales};
    }
    KvView view() const {
      return {keys.view(), values.view(), key_scales.view(), value_scales.view()};
    }
  };

  Backend& backend_;
  Sizes sizes_;
  std::vector<Layer> layers_;
  Buffer queries_, out_;
};

CacheKind kind_of_cache(const std::string& name, const std::string& of_case) {
  const auto kind = cache_of(name);
  if (!kind) throw Error(of_case + ": caches: expected exact or int8, found \"" + name + "\"");
  return *kind;
}

}  // namespace

void run_cache_case(const nlohmann::json& description, int repeat, nlohmann::json& results) {
  const std::string name = description.at("name");
  Sizes sizes{.n_heads = description.at("n_heads"),
              .n_kv_heads = description.at("n_kv_heads"),
              .head_dim = description.at("head_dim"),
              .n_layers = description.at("n_layers"),
              .n_tokens = 0};
  Table table(name, results);
  table.say(fmt::format("{} layers, {} query and {} key heads of {}", sizes.n_layers, sizes.n_heads,
                        sizes.n_kv_heads, sizes.head_dim));
  table.columns(
      {"dtype", "cache", "T", "MB", "attend ms", "read ms", "read GB/s", "share of the read"});
  for (const std::string dtype : description.at("dtypes"))
    for (const int64_t n_tokens : description.at("n_tokens"))
      for (const std::string cache : description.at("caches")) {
        sizes.n_tokens = n_tokens;
        const auto backend = make_cpu_backend(dtype == "bf16" ? DType::kBF16 : DType::kF32);
        Caches caches(*backend, sizes, kind_of_cache(cache, name));
        const auto samples =
            time_interleaved(repeat, {[&] { caches.attend(); }, [&] { caches.read(); }});
        const auto fastest = [&](size_t i) {
          return *std::min_element(samples[i].begin(), samples[i].end());
        };
        const double attend = fastest(0), read = fastest(1);
        const auto bytes = static_cast<double>(caches.bytes());
        table.row({dtype, cache, fmt::format("{}", n_tokens), fmt::format("{:.1f}", bytes / 1e6),
                   fmt::format("{:.2f}", attend), fmt::format("{:.2f}", read),
                   fmt::format("{:.1f}", bytes / read / 1e6),
                   fmt::format("{:.2f}", read / attend)});
        results["cases"].push_back({{"name", fmt::format("{} {} {}", name, cache, n_tokens)},
                                    {"dtype", dtype},
                                    {"n_tokens", n_tokens},
                                    {"mode", "dense"},
                                    {"cache", cache},
                                    {"bytes", caches.bytes()},
                                    {"samples_ms", samples[0]},
                                    {"median_ms", median(samples[0])},
                                    {"fastest_ms", attend},
                                    {"fastest_read_ms", read},
                                    {"share_of_read", read / attend}});
      }
}

}  // namespace sluice::impl::bench
