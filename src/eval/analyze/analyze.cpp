#include "eval/analyze/analyze.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "eval/analyze/paper_tables.h"
#include "eval/analyze/profile_depth.h"
#include "eval/analyze/profile_matrices.h"
#include "eval/analyze/profile_sets.h"
#include "eval/text/host_rows.h"
#include "eval/text/windows.h"
#include "ranks/divide.h"

namespace sluice::impl {
namespace {

// What one window adds to a track.
struct TrackWindow {
  std::vector<LayerFigures> layers;  // (n_layers)
  std::optional<TokenMap> map;       // where it is asked for, of the first window

  template <typename Archive>
  void transfer(Archive& archive) {
    archive(layers, map);
  }
};

// One tau and one space: its sets, one series per key/value head in key space, and its figures.
struct Track {
  Profile profile;
  std::vector<ProfileSets> sets;
  std::optional<TokenMap> map;  // where it is asked for: empty, until the first window is added
  TrackWindow window;           // the current one
  DepthRows rows_before;        // of the layer before, in residual space
  std::vector<TokenSet> sets_before;
};

// Keys of one head, (n_tokens, head_dim).
ConstTensor keys_of_head(const ConstTensor& keys, int64_t head, int64_t head_dim) {
  const ConstTensor rows(keys.bytes() + head * head_dim * element_bytes(keys.dtype()), keys.dtype(),
                         {keys.rows(), head_dim}, keys.device());
  return rows.with_row_stride(keys.row_stride());
}

class Analyzer {
 public:
  Analyzer(Model& model, const ProjectionNorms& norms, int64_t n_tokens,
           const AnalyzeOptions& options)
      : model_(model),
        norms_(norms),
        leading_(leading_set(options.rules)),
        cache_(model.make_cache(1, n_tokens)) {
    for (const double tau : options.taus)
      for (const RowSpace space : options.spaces)
        tracks_.push_back(make_track(tau, space, options));
    for (Track& track : tracks_) track.profile.n_tokens = n_tokens;
    if (options.want_map) start_map(options.rules);
  }

  // What the window adds to each track.
  std::vector<TrackWindow> look_at(WholeWindows& window) {
    const auto n_layers = static_cast<size_t>(model_.spec().n_layers);
    for (Track& track : tracks_) {
      track.window = {};
      track.window.layers.resize(n_layers);
      for (ProfileSets& sets : track.sets) sets.begin_window(window.index());
      if (!track.map || window.index() > 0) continue;
      track.window.map = track.map;
      track.window.map->tokens.assign(window.tokens().begin(), window.tokens().end());
    }
    cache_.truncate(0);
    observed_forward(model_, window.tokens(), cache_, [&](const AttentionSeen& seen) {
      const AttentionOutputs outputs =
          attention_outputs(model_.backend(), model_.spec(), norms_, seen);
      const AttentionScores scores = attention_scores(model_.backend(), model_.spec(), seen);
      for (Track& track : tracks_) add_layer(track, {seen, outputs, scores});
      window.layer_done();
    });
    std::vector<TrackWindow> found;
    for (Track& track : tracks_) found.push_back(std::move(track.window));
    return found;
  }

  void add(const std::vector<TrackWindow>& window) {
    for (size_t i = 0; i < tracks_.size(); ++i) {
      tracks_[i].profile.add_window(window[i].layers);
      if (window[i].map) tracks_[i].map = window[i].map;
    }
  }

  AnalyzeResult take_result() {
    AnalyzeResult result;
    for (Track& track : tracks_) {
      result.profiles.push_back(std::move(track.profile));
      if (track.map) result.map = std::move(track.map);
    }
    return result;
  }

 private:
  Track make_track(double tau, RowSpace space, const AnalyzeOptions& options) const {
    const ModelSpec& spec = model_.spec();
    Track track;
    track.profile.tau = tau;
    track.profile.space = space;
    track.profile.row_width = space == RowSpace::kKey ? spec.head_dim : spec.d_model;
    track.profile.n_sets_per_layer = space == RowSpace::kKey ? spec.n_kv_heads : 1;
    track.profile.first_deep_layer = options.first_deep_layer;
    for (int64_t i = 0; i < track.profile.n_sets_per_layer; ++i)
      track.sets.emplace_back(
          model_.backend(),
          ProfileSetsSpec{.rules = options.rules,
                          .tau = tau,
                          .row_width = track.profile.row_width,
                          .sinks = options.sinks,
                          .outlier_ratio = options.outlier_ratio,
                          .seed = options.seed + static_cast<uint64_t>(i),
                          .owner = spec.causal ? OwnerKind::kEarlier : OwnerKind::kAnywhere});
    return track;
  }

  void start_map(const std::vector<SelectRule>& rules) {
    const auto track = std::find_if(tracks_.begin(), tracks_.end(), [](const Track& candidate) {
      return candidate.profile.space != RowSpace::kKey;
    });
    if (track != tracks_.end())
      track->map = {.tau = track->profile.tau,
                    .space = track->profile.space,
                    .rule = set_kinds(rules)[leading_].rule,
                    .tokens = {},
                    .layers = {}};
  }

  struct LayerSeen {
    const AttentionSeen& seen;
    const AttentionOutputs& outputs;
    const AttentionScores& scores;
  };
  void add_layer(Track& track, const LayerSeen& all) const {
    const auto& [seen, outputs, scores] = all;
    LayerFigures& layer = track.window.layers[static_cast<size_t>(seen.layer)];
    const RowSpace space = track.profile.space;
    if (space != RowSpace::kKey) {
      const ConstTensor rows = space == RowSpace::kResidual ? seen.residual : seen.input;
      const auto& sets = track.sets[0].add_layer(rows, seen.residual, layer.sets);
      if (track.window.map) {
        const TokenSet& set = sets[leading_];
        track.window.map->layers.push_back({set.status, set.owner, set.cosine});
      }
      for (size_t kind = 0; kind < sets.size(); ++kind)
        measure_attention(outputs, {0, outputs.n_heads}, sets[kind], true, layer.sets[kind]);
      measure_matrices(scores, {0, outputs.n_heads}, sets, layer.sets);
      if (space == RowSpace::kResidual) follow_pairs(track, seen, sets);
      return;
    }
    const int64_t n_kv_heads = track.profile.n_sets_per_layer;
    const int64_t group = outputs.n_heads / n_kv_heads;
    layer.heads.resize(static_cast<size_t>(n_kv_heads));
    for (int64_t head = 0; head < n_kv_heads; ++head) {
      const ConstTensor rows = keys_of_head(seen.keys, head, outputs.head_dim);
      std::vector<SetFigures> of_head;
      const auto& sets =
          track.sets[static_cast<size_t>(head)].add_layer(rows, seen.residual, of_head);
      for (size_t kind = 0; kind < sets.size(); ++kind)
        measure_attention(outputs, {head * group, group}, sets[kind], false, of_head[kind]);
      measure_matrices(scores, {head * group, group}, sets, of_head);
      HeadFigures& figures = layer.heads[static_cast<size_t>(head)];
      figures.n_reps_independent.add(of_head[kIndependentSet].n_reps.mean());
      figures.n_reps_cascade.add(of_head[leading_].n_reps.mean());
      add_figures(of_head, layer.sets);
    }
  }

  // Proposition 3 speaks of the residual stream from layer to layer.
  void follow_pairs(Track& track, const AttentionSeen& seen,
                    const std::vector<TokenSet>& sets) const {
    DepthRows now{model_.spec().d_model, host_rows(model_.backend(), seen.residual)};
    for (size_t kind = 0; seen.layer > 0 && kind < sets.size(); ++kind)
      measure_persistence(track.rows_before, now, track.sets_before[kind],
                          track.window.layers[static_cast<size_t>(seen.layer)].sets[kind]);
    track.rows_before = std::move(now);
    track.sets_before = sets;
  }

  Model& model_;
  const ProjectionNorms& norms_;
  size_t leading_;
  KvCache cache_;
  std::vector<Track> tracks_;
};

}  // namespace

int64_t default_deep_layer(const ModelSpec& spec) {
  const PaperModel* paper = paper_model_of(spec);
  if (paper != nullptr) return paper->deep.first_layer;
  return std::min((spec.n_layers + 1) / 2, spec.n_layers - 1);  // a model of one layer has that
}

LayerPlan rule_settings(SelectRule rule, std::optional<int64_t> sinks,
                        std::optional<double> outlier_ratio, const ModelSpec& spec) {
  UniformAttention choice;
  choice.mode = AttentionMode::kKeys;
  choice.rule = rule;
  choice.sinks = sinks;
  choice.outlier_ratio = outlier_ratio;
  return layer_plan(choice, {.n_layers = spec.n_layers,
                             .n_kv_heads = spec.n_kv_heads,
                             .causal = spec.causal,
                             .context = spec.max_positions});
}

std::vector<int32_t> first_window(TextStream& text, int64_t n_tokens) {
  std::vector<int32_t> window;
  const int64_t n_read = text.read(n_tokens, window);
  if (n_read < n_tokens)
    throw Error(fmt::format("the text has {} tokens, a window takes {}", n_read, n_tokens),
                "a longer text, or a smaller --context");
  return window;
}

bool WholeWindows::next() {
  if (n_windows_ == wanted_.n_windows) return false;
  if (n_windows_ == 0) {
    tokens_ = first_window(text_, wanted_.n_tokens);
  } else {
    tokens_.clear();
    if (text_.read(wanted_.n_tokens, tokens_) < wanted_.n_tokens) return false;
  }
  ++n_windows_;
  n_layers_done_ = 0;
  return true;
}

void WholeWindows::layer_done() {
  ++n_layers_done_;
  const int64_t n_done = index() * wanted_.n_layers + n_layers_done_;
  if (progress_)
    progress_(static_cast<double>(n_done) /
              static_cast<double>(wanted_.n_windows * wanted_.n_layers));
}

AnalyzeResult analyze(Model& model, const ProjectionNorms& norms, TextStream& text,
                      int64_t n_tokens, const AnalyzeOptions& options,
                      const std::function<void(double)>& progress) {
  Analyzer analyzer(model, norms, n_tokens, options);
  WholeWindows windows(text, {n_tokens, options.n_windows, model.spec().n_layers}, progress);
  divide<std::vector<TrackWindow>>(
      *options.communicator, [&] { return windows.next(); },
      [&] { return analyzer.look_at(windows); },
      [&](const std::vector<TrackWindow>& window) { analyzer.add(window); });
  return analyzer.take_result();
}

}  // namespace sluice::impl
