#include "cli/analyze/analyze_joint.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/terminal/progress.h"
#include "core/error.h"
#include "eval/calibrate.h"
#include "eval/results.h"
#include "select/rules.h"

namespace sluice::impl::cli {
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
  double pairs = 0, products = 0;

  JointTotal(const JointProfile& profile, size_t rank) {
    for (const JointLayer& layer : profile.layers) {
      pairs += layer.ranks[rank].pairs.mean();
      products += layer.ranks[rank].products.mean();
    }
  }
};

constexpr Digits kMilliseconds{.decimals = 3, .factor = 1000};

void add_times(std::vector<Cell>& row, const JointTimes& times) {
  row.push_back(cell(times.seconds, kMilliseconds));
  for (const double x : {times.speedup.middle, times.speedup.low, times.speedup.high})
    row.push_back(cell(x, {.decimals = 2}));
}

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
    request.bases = read_sidecar(input.bases, input.checkpoint, text.path);
    if (const Basis* basis = request.bases->bases.find(0, selection_input(options.space)))
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
    check_bases(request.bases->bases, spec.n_layers, options);
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
  }
  const Bases& bases = request.bases ? request.bases->bases : made;
  ProgressBar bar("analyze joint selection", quiet);
  TextStream text = source.open();
  JointProfile profile = profile_joint(model, text, bases, request.options,
                                       [&](double done) { bar.update(done, ""); });
  if (request.bases)
    profile.bases = request.bases->origin;
  else
    profile.bases = {.path = "",
                     .text_path = source.path,
                     .text_sha256 = sha256_of({source.path}),
                     .n_tokens = made.n_tokens,
                     .same_text = {}};
  return profile;
}

TextTable joint_table(const JointProfile& profile) {
  const JointOptions& options = profile.options;
  const std::string origin =
      profile.bases.path.empty()
          ? fmt::format("the {} tokens that follow the windows", profile.bases.n_tokens)
          : fmt::format("{} tokens of {}", profile.bases.n_tokens,
                        profile.bases.same_text == true ? "this very text" : "another text");
  TextTable table(
      fmt::format(
          "Joint selection. {}, tau {}, T {}, {}; bases of rank k from {}. Pairs dropped in "
          "k dimensions, the others multiplied in {}; sets and owners are the same. "
          "Selection in ms: without a basis, with it, and with it as long as it is judged to "
          "pay; medians of interleaved runs. Speed-up over selection without a basis, run by run: "
          "median, lowest, highest",
          rule_name(options.rule), options.tau, options.n_tokens, row_space_name(options.space),
          origin, profile.d_model),
      {"layer", "k", "energy", "pairs", "dropped", "full products", "plain ms", "joint ms",
       "speed-up", "low", "high", "joint, if judged to pay", "its speed-up", "its low", "its high",
       "its dropped"},
      1);
  for (size_t l = 0; l < profile.layers.size(); ++l)
    for (const JointFigures& figures : profile.layers[l].ranks) {
      std::vector<Cell> row = {cell(static_cast<int64_t>(l)),
                               cell(figures.rank),
                               cell(figures.energy, kPercent),
                               cell(figures.pairs.mean(), {}),
                               cell(figures.dropped_fraction.mean(), kPercent),
                               cell(figures.products.mean(), {}),
                               cell(profile.layers[l].seconds, kMilliseconds)};
      add_times(row, figures.times.always);
      add_times(row, figures.times.where_pays);
      row.push_back(cell(figures.dropped_fraction_where_pays.mean(), kPercent));
      table.add(std::move(row));
    }
  for (size_t i = 0; i < options.ranks.size(); ++i) {
    const JointTotal all(profile, i);
    std::vector<Cell> row = {words("all"),
                             cell(options.ranks[i]),
                             no_value(),
                             cell(all.pairs, {}),
                             cell(all.pairs > 0 ? 1 - all.products / all.pairs : 0, kPercent),
                             cell(all.products, {}),
                             cell(profile.seconds, kMilliseconds)};
    add_times(row, profile.times[i].always);
    add_times(row, profile.times[i].where_pays);
    row.push_back(no_value());
    table.add(std::move(row));
  }
  return table;
}

TextTable one_pass_table(const JointOptions& options, const std::vector<OnePassProfile>& profiles) {
  TextTable table(
      fmt::format(
          "Joint cascade in one pass. {}, tau {}, T {}, {}; set and basis of rank k are "
          "inherited together, the basis updated where it leaves out more than the "
          "threshold. Updates: directions behind the first layer. Multiply-adds in millions "
          "over all layers: of the set alone, of set and basis apart, of both together",
          rule_name(options.rule), options.tau, options.n_tokens, row_space_name(options.space)),
      {"k", "threshold", "updates", "of fresh", "updates saved", "energy", "pairs dropped",
       "set alone", "apart", "together", "together over apart", "over set alone"},
      2);
  constexpr Digits kMillions{.decimals = 1, .factor = 1e-6};
  for (const OnePassProfile& profile : profiles) {
    RunningMean energy, dropped;
    for (const OnePassLayer& layer : profile.layers) {
      energy.add(layer.energy.mean());
      dropped.add(layer.dropped_fraction.mean());
    }
    const auto fresh = static_cast<double>(profile.fresh_updates());
    table.add({words(fmt::format("{}", profile.rank)), words(fmt::format("{}", profile.threshold)),
               cell(profile.updates.mean(), kCount), cell(profile.fresh_updates()),
               fresh > 0 ? cell(1 - profile.updates.mean() / fresh, kPercent) : no_value(),
               cell(energy.mean(), kPercent), cell(dropped.mean(), kPercent),
               cell(profile.set_alone.mean(), kMillions), cell(profile.apart.mean(), kMillions),
               cell(profile.together.mean(), kMillions),
               cell(profile.together.mean() / profile.apart.mean(), {.decimals = 2}),
               cell(profile.together.mean() / profile.set_alone.mean(), {.decimals = 2})});
  }
  return table;
}

}  // namespace sluice::impl::cli
