#include "attention_cases.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "attention_layer.h"
#include "core/peak_memory.h"
#include "eval/timing.h"
#include "joint_cases.h"
#include "table.h"

namespace sluice::impl::bench {
namespace {

// A measured speed-up and, behind it, the ratio of operations.
std::string speedup(const Ratio& ratio, double operations) {
  return fmt::format("{:.2f}x ({:.2f}-{:.2f}) [{:.2f}]", ratio.middle, ratio.low, ratio.high,
                     operations);
}

std::vector<double> sum(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> total;
  for (size_t i = 0; i < a.size(); ++i) total.push_back(a[i] + b[i]);
  return total;
}

void run_case(const std::string& name, const AttentionCase& c, int repeat, Table& table,
              nlohmann::json& results) {
  restart_peak_memory();
  AttentionLayer layer(c);
  layer.select();
  const auto samples = time_interleaved(
      repeat, {[&] { layer.dense(); }, [&] { layer.select(); }, [&] { layer.keys(); },
               [&] { layer.project(); }, [&] { layer.copy(); }, [&] { layer.bare_gram(); }});
  const auto &dense = samples[0], &select = samples[1], &keys = samples[2], &project = samples[3],
             &copy = samples[4], &gram = samples[5];
  const AttentionFlops flops = attention_flops(c, layer.n_reps());
  const double validated_flops = flops.dense / (flops.select + flops.keys);
  const double reused_flops = flops.dense / flops.keys;
  const double copy_flops =
      (flops.dense + flops.project) / (flops.select + flops.reps + flops.project_reps);
  const Ratio validated = ratio_of(dense, sum(select, keys)), reused = ratio_of(dense, keys);
  const Ratio copied = ratio_of(sum(dense, project), sum(select, copy));
  const double select_rate =
      2 * static_cast<double>(c.d_model) * static_cast<double>(layer.products()) / median(select);
  const double gram_rate = AttentionLayer::bare_gram_flops(c) / median(gram);
  const double dense_rate = flops.dense / median(dense);
  const double peak = static_cast<double>(peak_memory_bytes()) / (1 << 20);
  const double share = static_cast<double>(layer.n_reps()) / static_cast<double>(c.n_tokens);
  table.row({fmt::format("{} {}", name, dtype_name(c.dtype)), fmt::format("{}", c.d_model),
             fmt::format("{}", c.n_tokens), fmt::format("{:.3f}", share),
             fmt::format("{:.1f} ({:.0f})", median(dense), dense_rate * 1e-6),
             fmt::format("{:.1f} ({:.0f}% of {:.0f})", median(select),
                         100 * select_rate / gram_rate, gram_rate * 1e-6),
             fmt::format("{:.1f}", median(keys)), speedup(validated, validated_flops),
             speedup(reused, reused_flops), speedup(copied, copy_flops),
             fmt::format("{:.0f}", peak)});
  const auto record = [&](const char* mode, const std::vector<double>& ms, nlohmann::json extra) {
    extra.update(
        {{"name", fmt::format("{} T{} d{} r{}", name, c.n_tokens, c.d_model, layer.n_reps())},
         {"dtype", dtype_name(c.dtype)},
         {"n_tokens", c.n_tokens},
         {"d_model", c.d_model},
         {"n_reps", layer.n_reps()},
         {"mode", mode},
         {"samples_ms", ms},
         {"median_ms", median(ms)},
         {"tokens_per_s", 1e3 * static_cast<double>(c.n_tokens) / median(ms)},
         {"peak_mib", peak}});
    results["cases"].push_back(std::move(extra));
  };
  const auto against_dense = [](const Ratio& ratio, double operations) {
    return nlohmann::json{{"speedup_vs_dense", ratio.middle},
                          {"speedup_low", ratio.low},
                          {"speedup_high", ratio.high},
                          {"operations_ratio", operations}};
  };
  record("dense", dense, {{"gflops", dense_rate * 1e-6}});
  record("keys, validated", sum(select, keys), against_dense(validated, validated_flops));
  record("keys, reused", keys, against_dense(reused, reused_flops));
  record("copy, with projections", sum(select, copy), against_dense(copied, copy_flops));
  record("select", select,
         {{"gflops", select_rate * 1e-6},
          {"baseline", "bare product"},
          {"baseline_gflops", gram_rate * 1e-6},
          {"share_of_baseline", select_rate / gram_rate}});
}

}  // namespace

void run_attention_cases(const nlohmann::json& description, int repeat, nlohmann::json& results) {
  if (description.contains("joint")) return run_joint_cases(description, repeat, results);
  const std::string name = description.at("name");
  Table table(name, results);
  table.say(
      fmt::format("ms (GFLOP/s or share of a bare product); speed-ups (range) [ratio of "
                  "operations]; {} samples each",
                  repeat));
  table.columns({"case", "d", "T", "r/T", "dense", "select", "keys", "keys, set validated",
                 "keys, set reused", "copy, with projections", "peak MiB"});
  for (const std::string dtype : description.at("dtypes"))
    for (const int64_t d_model : description.at("d_model"))
      for (const int64_t n_tokens : description.at("n_tokens")) {
        std::vector<int64_t> n_reps;
        if (description.contains("n_reps"))
          n_reps = description["n_reps"].get<std::vector<int64_t>>();
        else
          for (const double share : description.at("redundancy"))
            n_reps.push_back(std::llround(share * static_cast<double>(n_tokens)));
        for (const int64_t n : n_reps)
          run_case(name,
                   {.n_tokens = n_tokens,
                    .d_model = d_model,
                    .head_dim = description.at("head_dim"),
                    .n_reps = n,
                    .dtype = dtype == "bf16" ? DType::kBF16 : DType::kF32,
                    .causal = description.value("causal", true)},
                   repeat, table, results);
      }
}

}  // namespace sluice::impl::bench
