#include "cli/demo_story.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "cli/analyze_tables.h"
#include "cli/bench_output.h"
#include "cli/comparison_output.h"
#include "cli/linear_options.h"
#include "cli/progress.h"
#include "eval/analyze_results.h"
#include "eval/bench_model.h"
#include "eval/eval_results.h"
#include "eval/generate_results.h"
#include "eval/shell_line.h"
#include "eval/token_text.h"

namespace sluice::cli {
namespace {

constexpr double kTau = 0.3;
constexpr const char* kSeparator = "<|endoftext|>";

// Lengths, as far as model and text reach.
int64_t length_of(const DemoScene& scene, int64_t wanted) {
  return std::min({wanted, scene.model.context(), static_cast<int64_t>(scene.tokens.size())});
}

std::vector<int64_t> lengths_of(const DemoScene& scene, std::initializer_list<int64_t> wanted) {
  std::vector<int64_t> lengths;
  for (const int64_t n : wanted)
    if (lengths.empty() || length_of(scene, n) > lengths.back())
      lengths.push_back(length_of(scene, n));
  return lengths;
}

// The command that measures the same alone.
ResultsOrigin origin_of(const DemoScene& scene, std::vector<std::string> words) {
  words.insert(words.begin() + 1, {"-m", scene.model_path});
  words.insert(words.begin(), "sluice");
  return {.command_line = shell_line(words),
          .checkpoint = scene.checkpoint,
          .model = scene.model,
          .text = scene.text_path};
}

void print_heading(const std::string& text) {
  fmt::print("\n{}\n{}\n\n", text, std::string(text.size(), '-'));
  std::fflush(stdout);
}

UniformAttention keys_at(double tau) {
  UniformAttention choice;
  choice.mode = AttentionMode::kKeys;
  choice.tau = tau;
  return choice;
}

AnalyzeResult analyze_text(const DemoScene& scene, int64_t n_tokens,
                           const AnalyzeOptions& options) {
  ProgressBar bar("analyze", scene.quiet);
  TextStream text(scene.text_path, scene.tokenizer, kSeparator);
  return analyze(scene.model, projection_norms(scene.checkpoint), text, n_tokens, options,
                 [&](double done) { bar.update(done, ""); });
}

AnalyzeReport report_of(const DemoScene& scene, const AnalyzeOptions& options,
                        const AnalyzeResult& result) {
  return {.model_name = scene.checkpoint.path.filename().string(),
          .spec = scene.checkpoint.spec(),
          .rules = options.rules,
          .exempts = options.sinks > 0 || options.outlier_ratio > 0,
          .profiles = result.profiles};
}

// The tokens that the busiest representatives of a layer stand for.
void print_clusters(const DemoScene& scene, const TokenMap& map, size_t layer, size_t n_clusters) {
  std::map<int32_t, std::vector<int32_t>> members;  // owner -> those that stand behind it
  const TokenMap::Layer& at = map.layers[layer];
  for (size_t t = 0; t < at.owner.size(); ++t)
    if (at.status[t] == TokenStatus::kRedundant)
      members[at.owner[t]].push_back(static_cast<int32_t>(t));
  std::vector<std::pair<int32_t, std::vector<int32_t>>> clusters(members.begin(), members.end());
  std::stable_sort(clusters.begin(), clusters.end(),
                   [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  clusters.resize(std::min(clusters.size(), n_clusters));
  const auto quoted = [&](int32_t position) {
    return nlohmann::json(token_text(scene.tokenizer, map.tokens[static_cast<size_t>(position)]))
        .dump();
  };
  if (!clusters.empty()) fmt::print("\nAt layer {}:\n", layer);
  for (const auto& [owner, tokens] : clusters) {
    std::map<std::string, int> counts;
    for (const int32_t t : tokens) ++counts[quoted(t)];
    std::vector<std::pair<std::string, int>> texts(counts.begin(), counts.end());
    std::stable_sort(texts.begin(), texts.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    std::string listed;
    for (size_t i = 0; i < std::min<size_t>(texts.size(), 5); ++i)
      listed += fmt::format("{}{} x{}", i ? ", " : "", texts[i].first, texts[i].second);
    fmt::print("  {} at {} stands for {} others: {}{}\n", quoted(owner), owner, tokens.size(),
               listed, texts.size() > 5 ? ", …" : "");
  }
}

// Layer by layer, the leading set of a profile.
TextTable depth_table(const AnalyzeReport& report) {
  const Profile& profile = report.profiles.front();
  TextTable table(
      fmt::format("Representatives r of {} tokens; Jaccard: shared with the layer before",
                  profile.n_tokens),
      {"layer", "r", "r/T", "Jaccard", "turnover", "cosine to owner"});
  for (size_t l = 0; l < profile.layers.size(); ++l) {
    const SetFigures& set = profile.layers[l].sets[report.leading()];
    table.add({words(std::to_string(l)), cell(set.n_reps, {.decimals = 0}),
               cell(set.n_reps.mean() / static_cast<double>(profile.n_tokens), {.decimals = 2}),
               cell(set.jaccard_prev, {.decimals = 2}),
               cell(set.turnover, {.decimals = 0, .factor = 100, .unit = "%"}),
               cell(set.owner_cosine_mean, {.decimals = 3})});
  }
  return table;
}

// Every set over all layers.
TextTable cascade_table(const AnalyzeReport& report) {
  const Profile& profile = report.profiles.front();
  TextTable table(fmt::format("Means over layers, ± over {} windows", profile.n_windows),
                  {"set", "r", "Jaccard", "missed, worst layer", "uncovered", "products saved"});
  const std::vector<SetKind> kinds = set_kinds(report.rules);
  for (size_t k = 0; k < kinds.size(); ++k) {
    const SetSummary& set = profile.summaries[k];
    const bool control = kinds[k].rule == SelectRule::kFixed;
    table.add({words(kinds[k].name), cell(set.n_reps, {.decimals = 0}),
               cell(set.jaccard_prev, {.decimals = 2}), cell(set.missed_max, {.decimals = 0}),
               cell(set.uncovered, {.decimals = 1, .factor = 100, .unit = "%"}),
               control ? no_value()
                       : cell(set.savings_computed, {.decimals = 0, .factor = 100, .unit = "%"})});
  }
  return table;
}

}  // namespace

nlohmann::json tell_representatives(const DemoScene& scene) {
  print_heading("1. Many tokens say nearly the same");
  const ModelSpec& spec = scene.checkpoint.spec();
  const LayerPlan defaults = layer_plan(keys_at(kTau), scene.model.plan_shape());
  AnalyzeOptions options;
  options.taus = {kTau};
  options.spaces = {RowSpace::kNormed};
  options.rules = {defaults.rule};
  options.sinks = defaults.sinks;
  options.outlier_ratio = defaults.outlier_ratio;
  options.first_deep_layer = default_deep_layer(spec);
  options.n_windows = 1;
  options.want_map = true;
  const int64_t n_tokens = length_of(scene, 1024);
  const AnalyzeResult result = analyze_text(scene, n_tokens, options);
  fmt::print(
      "With tau = {} a token is redundant when an earlier one's row has a cosine of {:.2f} or "
      "more\n"
      "with its own. The rest represent the text; each layer inherits the set of the one before\n"
      "and only validates it ({}, the default).\n\n",
      kTau, threshold_of(kTau), rule_name(defaults.rule));
  fmt::print("{}", depth_table(report_of(scene, options, result)).markdown());
  if (result.map) print_clusters(scene, *result.map, result.map->layers.size() / 2, 3);
  const std::string context = std::to_string(n_tokens);
  return analyze_results(
      origin_of(scene, {"analyze", "-f", scene.text_path, "-c", context, "--select",
                        std::string(rule_name(defaults.rule)), "--windows", "1"}),
      {.options = options, .contexts = {n_tokens}, .result = result, .tokenizer = scene.tokenizer});
}

nlohmann::json tell_cascade(const DemoScene& scene) {
  const int64_t n_tokens = length_of(scene, kPaperTokens);
  print_heading("2. The sets persist from layer to layer");
  AnalyzeOptions options;
  options.taus = {kPaperTau};
  options.spaces = {RowSpace::kResidual};
  options.rules = {SelectRule::kCascadePaper, SelectRule::kCascadeCausal,
                   SelectRule::kCascadeCover};
  options.first_deep_layer = default_deep_layer(scene.checkpoint.spec());
  options.want_map = true;
  const AnalyzeResult result = analyze_text(scene, n_tokens, options);
  const AnalyzeReport report = report_of(scene, options, result);
  fmt::print(
      "The paper's settings: residual stream, tau = {}, T = {}. `Jaccard`: what a set shares with\n"
      "its like of the layer before. `missed`: representatives by the paper's definition that a\n"
      "rule should have and has not. `uncovered`: tokens with nobody close enough before them.\n"
      "`random`: a set of the same size, drawn by lot. All tables of the paper: sluice "
      "analyze.\n\n",
      kPaperTau, n_tokens);
  fmt::print("{}", cascade_table(report).markdown());
  return analyze_results(
      origin_of(scene, {"analyze", "-f", scene.text_path, "-c", std::to_string(n_tokens)}),
      {.options = options, .contexts = {n_tokens}, .result = result, .tokenizer = scene.tokenizer});
}

nlohmann::json tell_quality(const DemoScene& scene) {
  print_heading("3. What attention on representatives costs");
  std::vector<UniformChoice> choices;
  for (const AttentionMode mode :
       {AttentionMode::kKeys, AttentionMode::kCopy, AttentionMode::kPaper})
    for (const double tau : {0.2, kTau, 0.5}) {
      choices.push_back({.attention = keys_at(tau)});
      choices.back().attention.mode = mode;
    }
  const PlanShape shape = scene.model.plan_shape();
  const std::vector<Plan> plans = prepared_plans(scene.model, choices, {});
  constexpr int64_t kWindows = 3;
  CompareResult result;
  {
    ProgressBar bar("eval", scene.quiet);
    TextStream text(scene.text_path, scene.tokenizer, kSeparator);
    result = compare_plans(scene.model, text, plans, {.max_windows = kWindows},
                           [&](const CompareResult& so_far) {
                             bar.update(static_cast<double>(so_far.n_windows) / kWindows, "");
                           });
  }
  fmt::print(
      "KL(dense‖mode), in nats per token, is what is lost; keys read, as a share of what dense\n"
      "attention scores, is what is left to do. `keys` keeps every query and the near keys exact\n"
      "and merges far ones. `copy` and `paper` hand a representative's output to those behind it,\n"
      "which ruins a causal model; `paper` also shows tokens what follows them.\n");
  print_table(result, choices, shape);
  return comparison_results(
      origin_of(scene, {"eval", "-f", scene.text_path, "-c", std::to_string(shape.context),
                        "--windows", std::to_string(kWindows), "--attention", "keys,copy,paper",
                        "--tau", "0.2,0.3,0.5"}),
      {.choices = choices, .plans = plans, .result = result});
}

std::vector<nlohmann::json> tell_generation(const DemoScene& scene) {
  print_heading("4. The same prompt, dense and on representatives");
  constexpr int64_t kPredict = 48;
  const int64_t n_prompt = std::max<int64_t>(length_of(scene, 1024) - kPredict, 1);
  const std::vector<int32_t> beginning(scene.tokens.begin(), scene.tokens.begin() + n_prompt);
  const std::string prompt = scene.tokenizer.decode(beginning, /*skip_special=*/true);
  std::vector<nlohmann::json> results;
  for (const UniformAttention& choice : {UniformAttention{}, keys_at(kTau), keys_at(0.5)}) {
    GenerateOptions options;
    options.n_predict = kPredict;
    options.sampler.repetition_penalty = 1.2F;  // so small a model repeats itself
    const bool dense = choice.mode == AttentionMode::kDense;
    if (!dense) options.plan.attention = uniform_plan(choice, scene.model.plan_shape());
    std::string answer;
    const GenerateResult result = generate(scene.model, scene.tokenizer, prompt, options,
                                           [&](std::string_view text) { answer += text; });
    fmt::print("{}{}\n\n", dense ? "dense:\n  …" : fmt::format("keys, tau {}:\n  …", choice.tau),
               nlohmann::json(answer).dump());
    std::vector<std::string> words = {
        "generate", "-p", prompt, "-n", std::to_string(kPredict), "--repetition-penalty", "1.2"};
    if (!dense)
      words.insert(words.end(), {"--attention", "keys", "--tau", fmt::format("{}", choice.tau)});
    ResultsOrigin origin = origin_of(scene, words);
    origin.text.clear();  // the prompt is in the command
    results.push_back(generate_results(origin, {.prompt = prompt,
                                                .text = answer,
                                                .options = options,
                                                .choice = {.attention = choice},
                                                .result = result}));
  }
  return results;
}

nlohmann::json tell_speed(const DemoScene& scene) {
  print_heading("5. What it saves in time, here and now");
  BenchOptions options;
  options.lengths = lengths_of(scene, {512, 1024, 2048 - 32});
  options.n_predict = 32;
  options.repeat = 3;
  const std::vector<UniformChoice> choices = {{.attention = keys_at(kTau)},
                                              {.attention = keys_at(0.5)}};
  BenchResult result;
  {
    ProgressBar bar("bench", scene.quiet);
    result =
        bench_model(scene.model, scene.tokens,
                    bench_candidates(choices, prepared_plans(scene.model, choices, {}),
                                     scene.model.plan_shape()),
                    options, [&](double done, const std::string& now) { bar.update(done, now); });
  }
  fmt::print(
      "Dense and accelerated take turns. Attention is a small part of so small a model, and short\n"
      "texts gain little: below 1.00x dense is the faster.\n\n{}",
      bench_table(result, "pp: prefill; tg: decoding after so many tokens").markdown());
  std::string lengths;
  for (const int64_t n : options.lengths)
    lengths += (lengths.empty() ? "" : ",") + std::to_string(n);
  return bench_results(
      origin_of(scene, {"bench", "-f", scene.text_path, "-c", lengths, "-n", "32", "--repeat", "3",
                        "--attention", "keys", "--tau", "0.3,0.5"}),
      result);
}

}  // namespace sluice::cli
