// Runs a model densely over windows of a text and profiles the representative sets of every layer:
// for each tau and row space the independent, greedy and cascade sets, and two controls.

#pragma once

#include <functional>

#include "eval/analyze/profile_attention.h"
#include "eval/analyze/token_map.h"
#include "eval/text/text_stream.h"
#include "ranks/communicator.h"

namespace sluice::impl {

struct AnalyzeOptions {
  std::vector<double> taus;
  std::vector<RowSpace> spaces;
  std::vector<SelectRule> rules;  // distinct; `independent` and `greedy` are always followed
  int64_t sinks = 0;
  double outlier_ratio = 0;
  int64_t first_deep_layer = 0;
  int64_t n_windows = 4;  // at most
  uint64_t seed = 0;
  bool want_map = false;
  Communicator* communicator = &alone();  // that windows are divided over
};

struct AnalyzeResult {
  std::vector<Profile> profiles;
  // Where it is asked for: of the first window and of the first profile whose space is not `key`,
  // if any is.
  std::optional<TokenMap> map;
};

// The first layer that counts as deep: halfway, or where the paper begins for its own models.
int64_t default_deep_layer(const ModelSpec& spec);

// What attention by a rule has where nothing else is said: space, sinks and outliers.
LayerPlan rule_settings(SelectRule rule, std::optional<int64_t> sinks,
                        std::optional<double> outlier_ratio, const ModelSpec& spec);
// The next n_tokens of a text that is at its beginning; an Error where it has fewer.
std::vector<int32_t> first_window(TextStream& text, int64_t n_tokens);

// Windows of n_tokens that follow each other in a text, from its beginning; fewer than n_windows
// where the text ends, an Error where it has not even one.
struct WindowsWanted {
  int64_t n_tokens, n_windows;
  int64_t n_layers;  // of the model that reads them
};
class WholeWindows {
 public:
  // `progress` is called with the share of all layers done.
  WholeWindows(TextStream& text, const WindowsWanted& wanted, std::function<void(double)> progress)
      : text_(text), wanted_(wanted), progress_(std::move(progress)) {}

  bool next();  // false at the end
  std::span<const int32_t> tokens() const { return tokens_; }
  int64_t index() const { return n_windows_ - 1; }
  void layer_done();  // of this window

 private:
  TextStream& text_;
  WindowsWanted wanted_;
  std::function<void(double)> progress_;
  std::vector<int32_t> tokens_;
  int64_t n_windows_ = 0, n_layers_done_ = 0;
};

// One profile per tau and space, spaces innermost, over windows as above, which are divided over
// ranks; every rank returns the same.
AnalyzeResult analyze(Model& model, const ProjectionNorms& norms, TextStream& text,
                      int64_t n_tokens, const AnalyzeOptions& options,
                      const std::function<void(double)>& progress);

}  // namespace sluice::impl
