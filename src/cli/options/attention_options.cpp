#include "cli/options/attention_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>

#include "cli/options/baseline_options.h"
#include "cli/options/options.h"

namespace sluice::impl::cli {
namespace {

constexpr const char* kModeHelp =
    "dense   exact\n"
    "refine  near keys exact, far keys as the means of clusters,\n"
    "        or, where a query needs them, as they are\n"
    "keys    near keys exact, far keys merged into clusters\n"
    "copy    among representative tokens alone, the others\n"
    "        copy the output of theirs\n"
    "paper   as copy, to the letter of the paper: tokens see\n"
    "        what follows them, for reproduction only";
constexpr const char* kRuleHelp =
    "How representatives are chosen: independent (the paper's\n"
    "definition), greedy, or inherited from the layer before:\n"
    "cascade-cover (default), cascade-causal, cascade-paper\n"
    "(default of attention paper)";

void add_list(CLI::Option* option, bool lists) {
  option->allow_extra_args(false);
  if (lists)
    option->delimiter(',')->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  else
    option->expected(1);
}

constexpr const char* kAuto = "auto";

// Of 0 to below 1.
std::optional<double> tau_of(const std::string& text) {
  double tau = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), tau);
  if (error != std::errc() || end != text.data() + text.size() || !(tau >= 0 && tau < 1)) return {};
  return tau;
}

CLI::Validator tau_or_auto() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        if (text == kAuto || tau_of(text)) return "";
        return fmt::format("{} given, expected 0 to below 1, or auto", text);
      },
      "");
}

// Of 0 or more; infinity too.
std::optional<double> delta_of(const std::string& text) {
  double delta = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), delta);
  if (error != std::errc() || end != text.data() + text.size() || !(delta >= 0)) return {};
  return delta;
}

CLI::Validator delta_or_inf() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        if (delta_of(text)) return "";
        return fmt::format("{} given, expected 0 or more, or inf", text);
      },
      "");
}

// Those given, checked already, or the default.
std::vector<UniformAttention> with_taus(const AttentionFlags& flags,
                                        const UniformAttention& common) {
  if (flags.taus.empty()) return {common};
  std::vector<std::optional<double>> taus;  // none for auto
  for (const std::string& text : flags.taus) taus.push_back(tau_of(text));
  std::vector<UniformAttention> choices;
  for (const std::optional<double>& tau : distinct(taus)) {
    UniformAttention& choice = choices.emplace_back(common);
    choice.tau_auto = !tau;
    if (tau) choice.tau = *tau;
  }
  return choices;
}

// A flag that was given, and the modes that it has an effect on.
struct GivenFlag {
  const char* name;
  std::vector<AttentionMode> modes;
};
std::vector<GivenFlag> given(const AttentionFlags& flags) {
  using enum AttentionMode;
  std::vector<GivenFlag> names;
  const auto note = [&](bool is_given, const char* name, std::vector<AttentionMode> modes) {
    if (is_given) names.push_back({name, std::move(modes)});
  };
  note(!flags.fars.empty(), "--far", {kKeys});
  note(flags.window.has_value(), "--window", {kKeys, kRefine});
  note(flags.block.has_value(), "--block", {kKeys});
  note(!flags.taus.empty(), "--tau", {kKeys, kCopy, kPaper});
  note(!flags.rules.empty(), "--select", {kKeys, kCopy, kPaper});
  note(flags.space.has_value(), "--space", {kKeys, kCopy, kPaper});
  note(flags.sinks.has_value(), "--sinks", {kRefine, kKeys, kCopy, kPaper});
  note(flags.outlier_ratio.has_value(), "--outlier-ratio", {kKeys, kCopy, kPaper});
  note(flags.from_layer.has_value(), "--from-layer", {kRefine, kKeys, kCopy, kPaper, kBaseline});
  note(flags.joint, "--joint", {kKeys, kCopy, kPaper});
  note(!flags.deltas.empty(), "--delta", {kRefine});
  note(flags.segment.has_value(), "--segment", {kRefine});
  note(flags.early.has_value(), "--early", {kRefine});
  note(flags.page.has_value(), "--page", {kRefine});
  note(flags.tile.has_value(), "--tile", {kRefine});
  note(flags.strict, "--strict", {kRefine});
  note(flags.tile_factor.has_value(), "--tile-factor", {kRefine});
  note(flags.cache.has_value(), "--cache", {kDense, kRefine});
  note(!flags.keeps.empty(), "--keep", {kBaseline});
  return names;
}

void check_flags(const AttentionFlags& flags, const std::vector<AttentionMode>& modes) {
  if (flags.strict && flags.tile.value_or(1) != 1)
    throw CLI::ValidationError("--strict is --tile 1, give one of the two");
  const auto has = [&](AttentionMode mode) {
    return std::find(modes.begin(), modes.end(), mode) != modes.end();
  };
  const bool dense = has(AttentionMode::kDense);
  if (dense && modes.size() > 1)
    throw CLI::ValidationError(
        "--attention: dense is what the others are compared with, leave it out of the list");
  for (const GivenFlag& flag : given(flags)) {
    if (std::any_of(flag.modes.begin(), flag.modes.end(), has)) continue;
    std::vector<std::string_view> names;
    for (const AttentionMode mode : flag.modes) names.push_back(mode_name(mode));
    if (dense)
      throw CLI::ValidationError(
          fmt::format("{} has no effect on dense attention, give --attention {}", flag.name,
                      fmt::join(names, " or ")));
    throw CLI::ValidationError(fmt::format("{} has an effect on --attention {} alone", flag.name,
                                           fmt::join(names, " or ")));
  }
}

}  // namespace

void add_attention_options(CLI::App& command, AttentionFlags& flags, bool lists) {
  const std::string several = lists ? "; several with commas" : "";
  const auto add = [&](const char* name, auto& value, const std::string& help) {
    return command.add_option(name, value, help)->group("Attention");
  };
  CLI::Option* modes = add("--attention", flags.modes,
                           "What attention does (default dense" + several + "):\n" + kModeHelp)
                           ->check(mode_or_baseline(flags));
  CLI::Option* rules =
      add("--select", flags.rules, kRuleHelp + several)->check(CLI::IsMember(rule_names()));
  add("--space", flags.space,
      "Where tokens are compared: the residual stream, or normed,\n"
      "after the block's norm (default, except for the paper's rules)")
      ->check(CLI::IsMember({"residual", "normed"}));
  CLI::Option* taus = add("--tau", flags.taus,
                          "Tokens of cosine 1 - tau^2 or more are redundant (default 0.3;\n"
                          "0 merges nothing). auto: every layer chooses its own from the\n"
                          "first 256 tokens of a sequence, which stay exact (keys)" +
                              several)
                          ->check(tau_or_auto());
  CLI::Option* fars = add("--far", flags.fars,
                          "What stands for a cluster of far keys: centroid (default), the\n"
                          "means of keys and values; values, the representative's key and\n"
                          "the mean value; own, its key and value" +
                              several)
                          ->check(CLI::IsMember({"centroid", "values", "own"}));
  CLI::Option* deltas = add("--delta", flags.deltas,
                            "A query reads the members of a cluster instead of its mean where\n"
                            "the mean's error is estimated at delta or more (default 0.005; 0\n"
                            "reads all of them, inf none)" +
                                several)
                            ->check(delta_or_inf());
  for (CLI::Option* option : {modes, rules, taus, fars, deltas}) add_list(option, lists);
  constexpr int64_t kMost = int64_t{1} << 30;
  add("--window", flags.window,
      "Tokens before a query that stay exact, a multiple of the block\n"
      "(keys, default 128) or of the tile (refine; default 128 up to a\n"
      "context of 2048, else 0: what is not clustered yet stays exact)")
      ->check(CLI::Range(int64_t{0}, kMost));
  add("--block", flags.block,
      "Tokens by which far keys advance at a time (default 128, or a\n"
      "smaller window)")
      ->check(CLI::Range(int64_t{1}, kMost));
  add("--sinks", flags.sinks,
      "First tokens that are never merged (default 4; paper 0); refine\n"
      "rounds them up to whole pages")
      ->check(CLI::Range(int64_t{0}, kMost));
  add("--outlier-ratio", flags.outlier_ratio,
      "Tokens above this multiple of the median norm are never merged\n"
      "(default 8; paper 0: all may be)")
      ->check(number_between(0, std::numeric_limits<double>::max(), "0 or more"));
  add("--from-layer", flags.from_layer, "Layers before this one stay dense (default 0)")
      ->check(CLI::Range(int64_t{0}, kMost));
  add("--segment", flags.segment,
      "Tokens that refine clusters together once they are complete and\n"
      "before the window (default a sixteenth of the context, 128 to 512)")
      ->check(CLI::Range(int64_t{1}, kMaxSegment));
  add("--early", flags.early,
      "Tokens of a part of the open segment that is clustered before the\n"
      "rest, for queries that decide for themselves: decoding, --strict\n"
      "(default a quarter of the segment; the segment: never)")
      ->check(CLI::Range(int64_t{1}, kMaxSegment));
  add("--page", flags.page, "Tokens of a cluster of refine (default 16)")
      ->check(CLI::Range(int64_t{1}, kMaxSegment));
  add("--tile", flags.tile,
      "Queries of a prompt that open clusters together (default 128, or\n"
      "a smaller segment or window). What a query reads then depends on\n"
      "later ones of its tile, and is not what it reads when decoded")
      ->check(CLI::Range(int64_t{1}, kMaxTile));
  command
      .add_flag("--strict", flags.strict,
                "Every query of a prompt opens clusters for itself, as when\n"
                "decoding: --tile 1")
      ->group("Attention");
  add("--tile-factor", flags.tile_factor,
      "A tile's delta is this many times a single query's (default 5)")
      ->check(number_between(0, std::numeric_limits<double>::max(), "above 0"));
  add("--cache", flags.cache,
      "How keys and values are kept: exact (default), or int8 with a\n"
      "scale for each row and head, half of bf16's memory (on the CPU).\n"
      "All of them with attention dense; with refine those of dense\n"
      "layers and members of clusters")
      ->check(CLI::IsMember({"exact", "int8"}));
  command
      .add_flag("--joint", flags.joint,
                "Decide most pairs in the selection bases of --bases, where that\n"
                "pays; the sets are the same")
      ->group("Attention");
}

std::vector<UniformAttention> attention_choices(const AttentionFlags& flags) {
  std::vector<AttentionMode> modes;
  for (const std::string& name : flags.modes)
    modes.push_back(baseline_of(name) ? AttentionMode::kBaseline : *mode_of(name));
  modes = distinct(modes);
  if (modes.empty()) modes.push_back(AttentionMode::kDense);
  check_flags(flags, modes);
  const CacheKind cache = flags.cache ? *cache_of(*flags.cache) : CacheKind::kExact;
  if (modes.front() == AttentionMode::kDense) {
    if (cache == CacheKind::kExact) return {};
    UniformAttention dense;
    dense.cache = cache;
    return {dense};
  }

  UniformAttention common;
  if (flags.space) common.space = space_of(*flags.space);
  common.sinks = flags.sinks;
  common.window = flags.window;
  common.block = flags.block;
  common.outlier_ratio = flags.outlier_ratio;
  common.from_layer = flags.from_layer.value_or(common.from_layer);
  common.joint = flags.joint;
  RefinePlan& refine = common.refine;
  refine.segment = flags.segment.value_or(refine.segment);
  refine.early = flags.early.value_or(refine.early);
  refine.page = flags.page.value_or(refine.page);
  refine.tile = flags.strict ? 1 : flags.tile.value_or(refine.tile);
  refine.tile_factor = flags.tile_factor.value_or(refine.tile_factor);
  std::vector<std::optional<SelectRule>> rules;
  for (const std::string& name : distinct(flags.rules)) rules.push_back(rule_of(name));
  if (rules.empty()) rules.emplace_back();
  std::vector<UniformAttention> choices;
  for (const AttentionMode mode : modes) {
    if (mode == AttentionMode::kBaseline) {
      const auto baselines = baseline_choices(flags, common);
      choices.insert(choices.end(), baselines.begin(), baselines.end());
      continue;
    }
    if (mode == AttentionMode::kRefine) {
      std::vector<double> deltas;
      for (const std::string& text : flags.deltas) deltas.push_back(*delta_of(text));
      if (deltas.empty()) deltas.push_back(common.delta);
      for (const double delta : distinct(deltas)) {
        UniformAttention& choice = choices.emplace_back(common);
        choice.mode = mode;
        choice.delta = delta;
        choice.cache = cache;
      }
      continue;
    }
    std::vector<FarKey> fars;  // `keys` alone knows several
    if (mode == AttentionMode::kKeys)
      for (const std::string& name : distinct(flags.fars)) fars.push_back(*far_of(name));
    if (fars.empty()) fars.push_back(common.far);
    for (const auto& rule : rules)
      for (const FarKey far : fars)
        for (const UniformAttention& with_tau : with_taus(flags, common)) {
          UniformAttention& choice = choices.emplace_back(with_tau);
          choice.mode = mode;
          choice.rule = rule;
          choice.far = far;
        }
  }
  return choices;
}

std::string tau_text(const UniformAttention& choice) {
  return choice.tau_auto ? kAuto : fmt::format("{}", choice.tau);
}

std::string attention_text(const UniformAttention& choice, const PlanShape& shape) {
  std::string text(mode_name(choice.mode));
  const std::string cache =
      choice.cache == CacheKind::kExact ? "" : fmt::format(", cache {}", cache_name(choice.cache));
  if (choice.mode == AttentionMode::kDense) return text + cache;
  const LayerPlan layer = layer_plan(choice, shape);
  const std::string from =
      choice.from_layer > 0 ? fmt::format(", from layer {}", choice.from_layer) : "";
  if (choice.mode == AttentionMode::kBaseline) return baseline_text(layer.baseline) + from;
  if (choice.mode == AttentionMode::kRefine)
    return text +
           fmt::format(
               ", delta {}, clusters of {} in segments of {}{}, tile {}{}, window {}, "
               "{} sinks{}",
               choice.delta, layer.refine.page, layer.refine.segment,
               layer.refine.tile == 1 && layer.refine.early < layer.refine.segment
                   ? fmt::format(", {} early", layer.refine.early)
                   : "",
               layer.refine.tile,
               layer.refine.tile > 1 ? fmt::format(" at {} x delta", layer.refine.tile_factor) : "",
               layer.window, layer.sinks, cache) +
           from;
  text += fmt::format(", {} in {} space, tau {}", rule_name(layer.rule), space_name(layer.space),
                      tau_text(choice));
  if (choice.mode == AttentionMode::kKeys)
    text += fmt::format(", far {}, window {}, block {}", far_name(choice.far), layer.window,
                        layer.block);
  text += fmt::format(", {} sinks", layer.sinks);
  text += layer.outlier_ratio > 0 ? fmt::format(", outliers above {}", layer.outlier_ratio)
                                  : ", outliers merged";
  if (choice.joint) text += ", joint";
  return text + from;
}

}  // namespace sluice::impl::cli
