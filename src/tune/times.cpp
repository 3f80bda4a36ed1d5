#include "tune/times.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "eval/compare/attention_work.h"
#include "eval/compare/refine_reads.h"
#include "eval/text/windows.h"
#include "eval/timing.h"
#include "tune/changes.h"

namespace sluice::impl {
namespace {

using nlohmann::json;

constexpr int kMostRounds = 5;
constexpr double kLongPassMs = 4000;  // above, a round or two must do

// One run of the model by a plan: samples of each layer's parts.
struct Run {
  Plan plan;
  std::vector<std::vector<LayerTimes>> samples;  // (rounds, n_layers)
  // (n_layers) where no time is measured: bytes of keys and values, or keys that are read; bytes of
  // rows compared.
  std::vector<double> counts, row_bytes;

  double middle(size_t layer, const std::function<double(const LayerTimes&)>& part) const {
    std::vector<double> values;
    for (const auto& round : samples) values.push_back(1e3 * part(round[layer]));
    return median(values);
  }
};

class CostMeter {
 public:
  CostMeter(Model& model, std::span<const int32_t> tokens, const CostOptions& options)
      : model_(model), tokens_(tokens), options_(options) {
    const PlanShape shape = model.plan_shape();
    runs_.push_back({});
    const HeadOptions& heads = options.heads;
    const auto add = [&](Plan plan) {
      if (options.objective == PlanObjective::kDecodeReads)
        plan.attention = with_strict_tiles(std::move(plan.attention));
      runs_.push_back({.plan = std::move(plan), .samples = {}, .counts = {}, .row_bytes = {}});
    };
    for (const int64_t window : heads.windows) {
      add({.attention = plan_of_all(heads, window, {.kind = HeadKind::kDense}, shape)});
      for (int64_t i = 0; i < heads.n_costs(); ++i)
        add({.attention = plan_of_all(heads, window, heads.choice_of_cost(i), shape)});
    }
    first_linear_ = runs_.size();
    for (const GroupPlan& group : options.linear)
      add({.attention = {}, .linear = linear_plan_of_all(group, shape.n_layers)});
  }

  Costs measure(const std::function<void(double)>& progress) {
    int rounds = is_time(options_.objective) ? kMostRounds : 1;
    for (int round = -1; round < rounds; ++round) {  // the first warms up
      if (!is_time(options_.objective) && round < 0) continue;
      for (size_t i = 0; i < runs_.size(); ++i) {
        const double ms = time_ms([&] { run(runs_[i], round >= 0); });
        if (ms > kLongPassMs) rounds = std::min(rounds, 2);
        progress((static_cast<double>((round + 1)) * static_cast<double>(runs_.size()) +
                  static_cast<double>(i)) /
                 (static_cast<double>(rounds + 1) * static_cast<double>(runs_.size())));
      }
    }
    return costs();
  }

 private:
  void run(Run& run, bool keep) {
    // A context may have no room for as many.
    const int64_t n_decode = options_.objective == PlanObjective::kDecode
                                 ? std::min(kDecodeTokens, std::ssize(tokens_) / 2)
                                 : 0;
    const int64_t n = std::ssize(tokens_) - n_decode;
    KvCache cache = model_.make_cache(1, n + n_decode, run.plan.attention, run.plan.linear);
    cache.wait_to_time(true);
    forward_in_passes(model_, tokens_.first(static_cast<size_t>(n)), cache,
                      model_.spec().causal ? kPassTokens : n, [](int64_t, const ConstTensor&) {});
    if (n_decode > 0) cache.reset_times();
    for (int64_t i = 0; i < n_decode; ++i)
      model_.forward(tokens_.subspan(static_cast<size_t>(n + i), 1), cache);
    if (!keep) return;
    std::vector<LayerTimes> times;
    const double share = n_decode > 0 ? 1.0 / static_cast<double>(n_decode) : 1;
    run.counts.clear();
    run.row_bytes.clear();
    for (int64_t layer = 0; layer < model_.spec().n_layers; ++layer) {
      LayerTimes of = cache.times(layer);
      of.select *= share;
      of.attend *= share;
      for (double& seconds : of.linear) seconds *= share;
      times.push_back(of);
      const LayerAttention* attention = cache.accelerated(layer);
      const LayerCacheBytes bytes = attention == nullptr ? LayerCacheBytes{} : attention->bytes();
      const auto rows = static_cast<double>(bytes.selection_rows);
      run.row_bytes.push_back(rows);
      if (options_.objective == PlanObjective::kMemory)
        run.counts.push_back(attention == nullptr ? dense_bytes(cache)
                                                  : static_cast<double>(bytes.total()) - rows);
      else if (!is_time(options_.objective))
        run.counts.push_back(keys_read(cache, layer));
    }
    run.samples.push_back(std::move(times));
  }

  double dense_bytes(const KvCache& cache) const {
    return static_cast<double>(cache.memory().dense_bytes) /
           static_cast<double>(model_.spec().n_layers);
  }

  // By all query heads of a layer.
  double keys_read(const KvCache& cache, int64_t layer) const {
    const bool causal = model_.spec().causal;
    if (cache.accelerated(layer) == nullptr)
      return static_cast<double>(model_.spec().n_heads *
                                 (causal ? dense_keys(cache.length(), model_.spec().window(layer))
                                         : cache.length() * cache.length()));
    RefineReads reads;
    reads.add(cache.plan().layers[static_cast<size_t>(layer)],
              {model_.spec().n_heads, cache.length(), causal},
              cache.accelerated(layer)->refine(0).opened());
    return reads.keys();
  }

  Costs costs() const {
    Costs costs;
    const auto n_layers = static_cast<size_t>(model_.spec().n_layers);
    const auto n_heads = static_cast<double>(model_.spec().n_kv_heads);
    const bool counts = !is_time(options_.objective);
    const auto attend = [](const LayerTimes& times) { return times.attend; };
    const auto select = [](const LayerTimes& times) { return times.select; };
    for (size_t layer = 0; layer < n_layers; ++layer) {
      const auto head_cost = [&](const Run& run) {
        return (counts ? run.counts[layer] : run.middle(layer, attend)) / n_heads;
      };
      LayerCosts of;
      of.dense_head = head_cost(runs_[0]);
      size_t next = 1;
      for (size_t window = 0; window < options_.heads.windows.size(); ++window) {
        // Only noise would make it cheaper than in a dense layer.
        of.exact_head.push_back(std::max(of.dense_head, head_cost(runs_[next++])));
        of.head.emplace_back();
        of.select.emplace_back();
        for (int64_t i = 0; i < options_.heads.n_costs(); ++i, ++next) {
          of.head.back().push_back(head_cost(runs_[next]));
          of.select.back().push_back(counts ? runs_[next].row_bytes[layer]
                                            : runs_[next].middle(layer, select));
        }
      }
      costs.heads.push_back(std::move(of));
      costs.linear.emplace_back();
      for (size_t input = 0; input < kLinearInputs.size(); ++input) {
        const auto linear = [input](const LayerTimes& times) { return times.linear[input]; };
        std::vector<double> of_input = {counts ? 0 : runs_[0].middle(layer, linear)};
        for (size_t i = first_linear_; i < runs_.size(); ++i)
          of_input.push_back(counts ? 0 : runs_[i].middle(layer, linear));
        costs.linear.back().push_back(std::move(of_input));
      }
    }
    return costs;
  }

  Model& model_;
  std::span<const int32_t> tokens_;
  const CostOptions& options_;
  // Dense; at each window all heads exact, then all at each threshold, then with the window alone;
  // all groups of each kind.
  std::vector<Run> runs_;
  size_t first_linear_ = 0;
};

using Rows = std::vector<std::vector<double>>;

bool has_shape(const Rows& rows, size_t n_rows, size_t n_columns) {
  return rows.size() == n_rows &&
         std::all_of(rows.begin(), rows.end(), [&](const std::vector<double>& row) {
           return row.size() == n_columns &&
                  std::all_of(row.begin(), row.end(), [](double cost) { return cost >= 0; });
         });
}

}  // namespace

Costs measure_costs(Model& model, std::span<const int32_t> tokens, const CostOptions& options,
                    const std::function<void(double)>& progress) {
  return CostMeter(model, tokens, options).measure(progress);
}

json describe_costs(const Costs& costs) {
  json heads = json::array();
  for (const LayerCosts& layer : costs.heads)
    heads.push_back({{"dense_head", layer.dense_head},
                     {"exact_head", layer.exact_head},
                     {"head", layer.head},
                     {"select", layer.select}});
  return {{"heads", heads}, {"linear", costs.linear}};
}

std::optional<Costs> costs_from(const json& from, const CostOptions& options, int64_t n_layers) {
  const auto n_windows = options.heads.windows.size();
  const auto n_costs = static_cast<size_t>(options.heads.n_costs());
  try {
    Costs costs;
    for (const json& layer : from.at("heads"))
      costs.heads.push_back({.dense_head = layer.at("dense_head"),
                             .exact_head = layer.at("exact_head").get<std::vector<double>>(),
                             .head = layer.at("head").get<Rows>(),
                             .select = layer.at("select").get<Rows>()});
    costs.linear = from.at("linear").get<std::vector<Rows>>();
    if (std::ssize(costs.heads) != n_layers || std::ssize(costs.linear) != n_layers) return {};
    for (const LayerCosts& layer : costs.heads)
      if (!has_shape({layer.exact_head}, 1, n_windows) ||
          !has_shape(layer.head, n_windows, n_costs) ||
          !has_shape(layer.select, n_windows, n_costs))
        return {};
    for (const Rows& layer : costs.linear)
      if (!has_shape(layer, kLinearInputs.size(), 1 + options.linear.size())) return {};
    return costs;
  } catch (const json::exception&) {
    return {};
  }
}

std::string costs_key(const std::string& machine, const CostOptions& options) {
  const HeadOptions& heads = options.heads;
  std::string key =
      fmt::format("{}: {}, windows {}, {} {}", machine, objective_name(options.objective),
                  fmt::join(heads.windows, " "), heads.refines() ? "delta" : "tau",
                  fmt::join(heads.thresholds(), " "));
  if (heads.refines())
    key += fmt::format(", s{} e{} p{} t{}", heads.refine.segment, heads.refine.early,
                       heads.refine.page, heads.refine.tile);
  else
    for (const FarKey far : heads.fars) key += fmt::format(", {}", far_name(far));
  for (const GroupPlan& group : options.linear) key += "; " + group_text(group);
  return key;
}

Costs known_costs(Model& model, std::span<const int32_t> tokens, const CostOptions& options,
                  const KeptCosts& kept, const std::function<void(double)>& progress) {
  const std::string key = costs_key(kept.machine, options);
  nlohmann::json times = kept.measurements.times();
  if (times.is_object() && times.contains(key))
    if (auto costs = costs_from(times[key], options, model.spec().n_layers)) return *costs;
  Costs costs = measure_costs(model, tokens, options, progress);
  if (!times.is_object()) times = nlohmann::json::object();
  times[key] = describe_costs(costs);
  kept.measurements.set_times(std::move(times));
  kept.measurements.save();
  return costs;
}

}  // namespace sluice::impl
