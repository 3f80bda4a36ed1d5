#include "cli/analyze_joint.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/progress.h"
#include "core/error.h"
#include "eval/calibrate.h"
#include "eval/results.h"
#include "select/rules.h"
#include "subspace/sidecar.h"

namespace sluice::cli {
namespace {

std::vector<int64_t> default_ranks(int64_t d_model, int64_t most) {
  std::vector<int64_t> ranks;
  for (const int64_t part : {16, 8, 4})
    if (const int64_t rank = d_model / part; rank > 0 && rank <= most) ranks.push_back(rank);
  return ranks.empty() ? std::vector{std::min(d_model, most)} : ranks;
}

RowSpace first_shared_space(const std::vector<RowSpace>& spaces) {
  for (const RowSpace space : spaces)
    if (space != RowSpace::kKey) return space;
  throw Error("joint selection is for rows that all heads share, --space names none",
              "--space normed or residual");
}

// Bases need as many tokens as directions, after those that are analysed.
void check_rest(const TextSource& source, int64_t n_analyzed, int64_t rank) {
  TextStream text = source.open();
  std::vector<int32_t> tokens;
  const int64_t n_rest = text.read(n_analyzed + rank, tokens) - n_analyzed;
  if (n_rest < rank)
    throw Error(fmt::format("after the windows the text has {} tokens, a basis of rank {} takes as "
                            "many at least",
                            std::max<int64_t>(n_rest, 0), rank),
                "a longer text, fewer --windows, or --bases from another text");
}

// Sums over layers.
struct JointTotal {
  double pairs = 0, products = 0, plain = 0, joint = 0, where_pays = 0;

  JointTotal(const JointProfile& profile, size_t rank) {
    for (const JointLayer& layer : profile.layers) {
      const JointFigures& figures = layer.ranks[rank];
      pairs += figures.pairs.mean();
      products += figures.products.mean();
      plain += layer.seconds;
      joint += figures.seconds;
      where_pays += figures.seconds_where_pays;
    }
  }
};

}  // namespace

JointRequest joint_request(const JointInput& input, const TextSource& text) {
  const ModelSpec& spec = input.checkpoint.spec();
  const AnalyzeOptions& analyze = input.analyze;
  JointRequest request;
  JointOptions& options = request.options;
  options.rule = set_kinds(analyze.rules)[leading_set(analyze.rules)].rule;
  options.tau = analyze.taus.front();
  options.space = first_shared_space(analyze.spaces);
  options.sinks = analyze.sinks;
  options.outlier_ratio = analyze.outlier_ratio;
  options.n_tokens = input.contexts.front();
  options.n_windows = analyze.n_windows;
  int64_t most = spec.d_model;
  if (!input.bases.empty()) {
    request.bases_path = input.bases;
    request.bases = read_bases(input.bases, {.sha256 = model_sha256(input.checkpoint),
                                             .n_layers = spec.n_layers,
                                             .widths = spec.row_widths()});
    request.same_text = request.bases->text_sha256 == sha256_of({text.path});
    if (const Basis* basis = request.bases->find(0, selection_input(options.space)))
      most = basis->rank;
  }
  options.ranks = input.ranks.empty() ? default_ranks(spec.d_model, most) : input.ranks;
  CalibrateOptions asked;
  asked.inputs = {selection_input(options.space)};
  asked.ranks = options.ranks;
  check_ranks(asked, spec.row_widths());
  request.n_analyzed =
      analyze.n_windows * *std::max_element(input.contexts.begin(), input.contexts.end());
  if (request.bases)
    check_bases(*request.bases, spec.n_layers, options);
  else
    check_rest(text, request.n_analyzed,
               *std::max_element(options.ranks.begin(), options.ranks.end()));
  return request;
}

JointProfile run_joint(const JointRequest& request, const TextSource& source, Model& model,
                       bool quiet) {
  Bases made;
  if (!request.bases) {
    ProgressBar bar("analyze bases", quiet);
    TextStream text = source.open();
    made = bases_after(model, text, request.n_analyzed, request.options,
                       [&](double done) { bar.update(done, ""); });
    made.text_path = source.path;
  }
  const Bases& bases = request.bases ? *request.bases : made;
  ProgressBar bar("analyze joint selection", quiet);
  TextStream text = source.open();
  JointProfile profile = profile_joint(model, text, bases, request.options,
                                       [&](double done) { bar.update(done, ""); });
  profile.bases_path = request.bases_path;
  profile.bases_text = bases.text_path;
  profile.bases_tokens = bases.n_tokens;
  profile.same_text = request.same_text;
  return profile;
}

TextTable joint_table(const JointProfile& profile) {
  const JointOptions& options = profile.options;
  const std::string origin =
      profile.bases_path.empty()
          ? fmt::format("the {} tokens that follow the windows", profile.bases_tokens)
          : fmt::format("{} tokens of {}", profile.bases_tokens,
                        profile.same_text ? "this very text" : "another text");
  TextTable table(
      fmt::format(
          "Joint selection. {}, tau {}, T {}, {}; bases of rank k from {}. Pairs dropped in "
          "k dimensions, the others multiplied in {}; sets and owners are the same. "
          "Selection in ms: without a basis, with it, and with it where it pays; medians "
          "of runs in turn",
          rule_name(options.rule), options.tau, options.n_tokens, row_space_name(options.space),
          origin, profile.d_model),
      {"layer", "k", "energy", "pairs", "dropped", "full products", "plain ms", "joint ms",
       "where it pays"},
      1);
  constexpr Digits kPercent{.decimals = 1, .factor = 100, .unit = "%"};
  constexpr Digits kMilliseconds{.decimals = 3, .factor = 1000};
  for (size_t l = 0; l < profile.layers.size(); ++l)
    for (const JointFigures& figures : profile.layers[l].ranks)
      table.add({cell(static_cast<int64_t>(l)), cell(figures.rank), cell(figures.energy, kPercent),
                 cell(figures.pairs.mean(), {}), cell(figures.dropped_fraction.mean(), kPercent),
                 cell(figures.products.mean(), {}), cell(profile.layers[l].seconds, kMilliseconds),
                 cell(figures.seconds, kMilliseconds),
                 cell(figures.seconds_where_pays, kMilliseconds)});
  for (size_t i = 0; i < options.ranks.size(); ++i) {
    const JointTotal all(profile, i);
    table.add({words("all"), cell(options.ranks[i]), no_value(), cell(all.pairs, {}),
               cell(all.pairs > 0 ? 1 - all.products / all.pairs : 0, kPercent),
               cell(all.products, {}), cell(all.plain, kMilliseconds),
               cell(all.joint, kMilliseconds), cell(all.where_pays, kMilliseconds)});
  }
  return table;
}

}  // namespace sluice::cli
