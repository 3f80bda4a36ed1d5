#include "cli/demo/demo_story.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "cli/bench_output.h"
#include "cli/conclusion/conclusion.h"
#include "cli/demo/demo_tables.h"
#include "cli/options/linear_options.h"
#include "cli/terminal/print.h"
#include "cli/terminal/progress.h"
#include "core/error.h"
#include "eval/analyze/analyze_results.h"
#include "eval/eval_results.h"
#include "eval/runs/generate_results.h"
#include "eval/shell_line.h"
#include "tune/tune_results.h"

namespace sluice::impl::cli {
namespace {

constexpr double kTau = 0.3, kDelta = 0.01;
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
  words.insert(words.end(), scene.flags.begin(), scene.flags.end());
  words.insert(words.begin(), "sluice");
  return {.command_line = shell_line(words),
          .checkpoint = scene.checkpoint,
          .model = scene.model,
          .text = scene.text_path,
          .model_sha256 = scene.model_sha256};
}

void print_heading(const std::string& text) {
  print("\n{}\n{}\n\n", text, std::string(text.size(), '-'));
  std::fflush(stdout);
}

UniformAttention keys_at(double tau) {
  UniformAttention choice;
  choice.mode = AttentionMode::kKeys;
  choice.tau = tau;
  return choice;
}

UniformAttention refine_at(double delta) {
  UniformAttention choice;
  choice.mode = AttentionMode::kRefine;
  choice.delta = delta;
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

// A grid small enough for a demo.
constexpr int64_t kLeastTuned = 64, kMostTuned = 256;  // tokens of a window
TuneOptions contract_options(const DemoScene& scene) {
  constexpr int64_t kWindow = 32;
  TuneOptions options;
  options.contract = Contract::of_kl(0.02);
  options.objective = PlanObjective::kMemory;
  options.heads = {.mode = AttentionMode::kKeys,
                   .windows = {kWindow},
                   .taus = {0.85},
                   .fars = {FarKey::kCentroid}};
  // One window to tune on and two to judge by, at least.
  const int64_t most =
      std::min({kMostTuned, scene.model.context(), std::ssize(scene.tokens) / 3 - 1});
  options.split = {.context = most - most % kWindow, .n_calibration = 2, .n_held_out = 6};
  options.needles = false;  // there is no room for them
  options.bench_rounds = 3;
  return options;
}

// Each change runs the layers behind it, half of them on average.
double seconds_to_tune(const DemoScene& scene, const TuneOptions& options, double tokens_per_s) {
  const PlanShape shape = scene.model.plan_shape();
  const int64_t n_changes = shape.n_layers * shape.n_kv_heads * options.heads.n_choices();
  const int64_t n_tokens = options.split.context * options.split.n_calibration;
  return 0.5 * static_cast<double>(n_changes * n_tokens) / tokens_per_s;
}

std::vector<std::string> tune_words(const DemoScene& scene, const TuneOptions& options) {
  const auto number = [](auto value) { return fmt::format("{}", value); };
  std::vector<std::string> words = {"tune", "-f", scene.text_path};
  words.insert(words.end(), {"-c", number(options.split.context)});
  words.insert(words.end(), {"--max-kl", number(options.contract.max_kl)});
  words.insert(words.end(), {"--objective", std::string(objective_name(options.objective))});
  words.insert(words.end(), {"--attention", std::string(mode_name(options.heads.mode))});
  words.insert(words.end(), {"--window", number(options.heads.windows[0])});
  words.insert(words.end(), {"--tau", number(options.heads.taus[0])});
  words.insert(words.end(), {"--far", std::string(far_name(options.heads.fars[0]))});
  words.insert(words.end(), {"--windows", number(options.split.n_calibration)});
  words.insert(words.end(), {"--held-out", number(options.split.n_held_out), "--no-needles"});
  words.insert(words.end(), {"-o", "plan.json"});
  return words;
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
  print(
      "With tau = {} a token is redundant when an earlier representative's row has a cosine of\n"
      "{:.2f} or more with its own. Each layer starts from the set of the one before: it drops\n"
      "members that have become alike and adds tokens that nobody stands for ({}, on\n"
      "normed rows: what attention uses by default).\n\n",
      kTau, threshold_of(kTau), rule_name(defaults.rule));
  print("{}", depth_table(report_of(scene, options, result)).markdown());
  if (result.map) print_clusters(scene.tokenizer, *result.map, result.map->layers.size() / 2, 3);
  const std::string context = std::to_string(n_tokens);
  return analyze_results(
      origin_of(scene, {"analyze", "-f", scene.text_path, "-c", context, "--select",
                        std::string(rule_name(defaults.rule)), "--windows", "1"}),
      {.options = options, .contexts = {n_tokens}, .result = result, .tokenizer = scene.tokenizer});
}

nlohmann::json tell_cascade(const DemoScene& scene) {
  const int64_t n_tokens = length_of(scene, kPaperTokens);
  print_heading("2. How far sets persist from layer to layer");
  AnalyzeOptions options;
  options.taus = {kPaperTau};
  options.spaces = {RowSpace::kResidual};
  options.rules = {SelectRule::kCascadePaper, SelectRule::kCascadeCausal,
                   SelectRule::kCascadeCover};
  options.first_deep_layer = default_deep_layer(scene.checkpoint.spec());
  options.want_map = true;
  const AnalyzeResult result = analyze_text(scene, n_tokens, options);
  const AnalyzeReport report = report_of(scene, options, result);
  print(
      "The residual stream, tau = {}, T = {}{}. `Jaccard`: what a set\n"
      "shares with its like of the layer before. `missed`: representatives by the paper's "
      "definition\n"
      "that a rule should have and has not. `uncovered`: tokens with nobody close enough before\n"
      "them. `random`: sets of the same size, drawn by lot. More of its tables: sluice "
      "analyze.\n\n",
      kPaperTau, n_tokens, n_tokens == kPaperTokens ? ", as in the paper" : "");
  print("{}", cascade_table(report).markdown());
  return analyze_results(
      origin_of(scene, {"analyze", "-f", scene.text_path, "-c", std::to_string(n_tokens)}),
      {.options = options, .contexts = {n_tokens}, .result = result, .tokenizer = scene.tokenizer});
}

Measured tell_quality(const DemoScene& scene) {
  print_heading("3. What attention on fewer keys costs");
  std::vector<UniformChoice> choices;
  for (const double delta : {kDelta, 0.03}) choices.push_back({.attention = refine_at(delta)});
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
  print(
      "KL(dense‖mode) is what is lost; keys read, what attention still scores, as a share of what\n"
      "dense attention does. `refine` reads far keys as means of clusters and opens those that a\n"
      "query needs: nothing is dropped. `keys` merges far keys into representatives, which also\n"
      "saves memory (choosing them comes on top: chapter 5). `copy` and `paper` hand a\n"
      "representative's output to those behind it, which ruins a causal model; `paper` also shows\n"
      "tokens what follows them.\n\n{}",
      quality_table(result, choices).markdown());
  nlohmann::json results = comparison_results(
      origin_of(scene, {"eval", "-f", scene.text_path, "-c", std::to_string(shape.context),
                        "--windows", std::to_string(kWindows), "--attention",
                        "refine,keys,copy,paper", "--delta", "0.01,0.03", "--tau", "0.2,0.3,0.5"}),
      {.choices = choices, .plans = plans, .result = result, .tokenizer = &scene.tokenizer});
  return {std::move(results), eval_conclusion(result, choice_labels(choices))};
}

std::vector<nlohmann::json> tell_generation(const DemoScene& scene) {
  print_heading("4. The same prompt, dense and on fewer keys");
  constexpr int64_t kPredict = 48;
  constexpr float kPenalty = 1.5F;
  print("The likeliest token each time, with a penalty of {} on tokens already seen.\n\n",
        kPenalty);
  const int64_t n_prompt = std::max<int64_t>(length_of(scene, 1024) - kPredict, 1);
  const std::vector<int32_t> beginning(scene.tokens.begin(), scene.tokens.begin() + n_prompt);
  const std::string prompt = scene.tokenizer.decode(beginning, /*skip_special=*/true);
  std::vector<nlohmann::json> results;
  for (const UniformAttention& choice : {UniformAttention{}, refine_at(kDelta), keys_at(kTau)}) {
    GenerateOptions options;
    options.n_predict = kPredict;
    options.sampler.repetition_penalty = kPenalty;
    const bool dense = choice.mode == AttentionMode::kDense;
    if (!dense) options.plan.attention = uniform_plan(choice, scene.model.plan_shape());
    std::string answer;
    const GenerateResult result = generate(scene.model, scene.tokenizer, prompt, options,
                                           [&](std::string_view text) { answer += text; });
    print("{}:\n  …{}\n\n",
          dense ? "dense" : fmt::format("{}, {}", mode_name(choice.mode), setting_of(choice)),
          nlohmann::json(answer).dump());
    std::vector<std::string> words = {"generate",
                                      "-p",
                                      prompt,
                                      "-n",
                                      std::to_string(kPredict),
                                      "--repetition-penalty",
                                      fmt::format("{}", kPenalty)};
    if (choice.mode == AttentionMode::kRefine)
      words.insert(words.end(),
                   {"--attention", "refine", "--delta", fmt::format("{}", choice.delta)});
    if (choice.mode == AttentionMode::kKeys)
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

Measured tell_speed(const DemoScene& scene) {
  print_heading("5. What it saves in time, here and now");
  BenchOptions options;
  options.n_predict = 128;  // a block: its selection falls into every sample
  options.lengths = lengths_of(scene, {512, kDemoTokens - options.n_predict});
  options.repeat = 5;
  const std::vector<UniformChoice> choices = {{.attention = refine_at(kDelta)},
                                              {.attention = keys_at(kTau)}};
  BenchResult result;
  {
    ProgressBar bar("bench", scene.quiet);
    result =
        bench_model(scene.model, scene.tokens,
                    bench_candidates(choices, prepared_plans(scene.model, choices, {}),
                                     scene.model.plan_shape()),
                    options, [&](double done, const std::string& now) { bar.update(done, now); });
  }
  print(
      "pp: reading a prompt of so many tokens. tg: decoding {} tokens after them. Runs of\n"
      "dense and accelerated are interleaved. Where the speed-up is below 1, dense is "
      "faster.\n\n{}",
      options.n_predict, speed_table(result).markdown());
  for (const std::string& line : result.left_out) print("Left out: {}\n", line);
  std::string lengths;
  for (const int64_t n : options.lengths)
    lengths += (lengths.empty() ? "" : ",") + std::to_string(n);
  nlohmann::json results =
      bench_results(origin_of(scene, {"bench", "-f", scene.text_path, "-c", lengths, "-n",
                                      std::to_string(options.n_predict), "--repeat",
                                      std::to_string(options.repeat), "--attention", "refine,keys",
                                      "--delta", "0.01", "--tau", "0.3"}),
                    result);
  return {std::move(results), bench_conclusion(result, scene.checkpoint.spec().max_positions)};
}

std::optional<nlohmann::json> tell_contract(const DemoScene& scene, double tokens_per_s) {
  print_heading("6. A loss you state, and a plan that keeps it");
  const TuneOptions options = contract_options(scene);
  if (options.split.context < kLeastTuned) {
    print("Left out: text or context are too short. On longer ones: sluice tune.\n");
    return std::nullopt;
  }
  constexpr double kMostSeconds = 20;
  if (seconds_to_tune(scene, options, tokens_per_s) > kMostSeconds) {
    print("Left out: with this model it takes minutes. By itself: sluice tune.\n");
    return std::nullopt;
  }
  Measurements measurements({}, {});
  TuneResult result;
  try {
    ProgressBar bar("tune", scene.quiet);
    TextStream text(scene.text_path, scene.tokenizer, kSeparator);
    result = tune(scene.model, text, options, measurements,
                  [&](double done, const std::string& now) { bar.update(done, now); });
  } catch (const Error& error) {  // too few documents: the story has been told without it
    print("Left out: {}\n", error.what());
    return std::nullopt;
  }
  print(
      "tune decides head by head what may be left out: here so that {} tokens take as little\n"
      "memory as a KL of {} allows, by mean plus two standard errors on text that it was not made\n"
      "from. For speed, more choices and longer texts: sluice tune.\n\n{}",
      options.split.context, options.contract.max_kl, contract_table(options, result).markdown());
  if (!result.dense_because.empty()) print("Dense: {}.\n", result.dense_because);
  return tune_results(origin_of(scene, tune_words(scene, options)), options, result);
}

}  // namespace sluice::impl::cli
