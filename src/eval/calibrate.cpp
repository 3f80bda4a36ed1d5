#include "eval/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "eval/moments_pass.h"
#include "ranks/divide.h"
#include "subspace/eigen.h"
#include "subspace/inherit.h"

namespace sluice::impl {
namespace {

using Group = MomentsGroup;

std::string label_of(const Group& group) {
  return fmt::format("layer {}, {}", group.layer, basis_input_name(group.input));
}

// Whether rows of different layers have coordinates in common. Those of the residual stream do,
// heads and neurons of one layer have nothing to do with those of another: on three trained models
// their subspaces were as alike as random ones.
bool shares_coordinates(BasisInput input) {
  return input != BasisInput::kAttentionOutput && input != BasisInput::kMlpInner;
}

// Whether a basis may need that of the layer before, so that one rank makes all of an input.
bool is_chained(BasisInput input, const CalibrateOptions& options) {
  if (!options.running.empty() || options.inherit == Inheritance::kAlways) return true;
  return options.inherit == Inheritance::kWherePaying && shares_coordinates(input);
}

// Groups whose moments share a pass over the text.
std::vector<std::vector<Group>> plan_passes(const ModelSpec& spec, const CalibrateOptions& options,
                                            const RowWidths& widths) {
  std::vector<std::vector<Group>> passes;
  int64_t left = 0;
  for (int64_t layer = 0; layer < spec.n_layers; ++layer)
    for (size_t i = 0; i < options.inputs.size(); ++i) {
      const BasisInput input = options.inputs[i];
      const int64_t bytes = Moments::bytes(widths.of(input));
      if (passes.empty() || bytes > left) {
        passes.emplace_back();
        left = options.memory;
      }
      const int64_t of_layer = is_chained(input, options) ? 0 : layer;
      const int64_t owner = (static_cast<int64_t>(i) + of_layer) % options.communicator->size();
      passes.back().push_back({layer, input, static_cast<int>(owner)});
      left -= bytes;
    }
  return passes;
}

// The windows of the text; the last may be shorter.
std::vector<std::vector<int32_t>> read_windows(TextStream& text, int64_t context,
                                               int64_t n_windows) {
  std::vector<std::vector<int32_t>> windows;
  while (static_cast<int64_t>(windows.size()) < n_windows) {
    std::vector<int32_t> window;
    const int64_t n = text.read(context, window);
    if (n > 0) windows.push_back(std::move(window));
    if (n < context) break;
  }
  return windows;
}

struct Made {
  Calibration out;
  RunningBases running;
};

// What one rank made.
struct MadeByRank {
  std::vector<Basis> bases;
  std::vector<GroupFigures> groups;
  std::vector<RunningTrack> running;

  template <typename Archive>
  void transfer(Archive& archive) {
    archive(bases, groups, running);
  }
};

// Puts what ranks made together, in the order that one process makes it in.
void gather(Communicator& ranks, const std::vector<std::vector<Group>>& passes, Calibration& out) {
  if (ranks.size() == 1) return;
  MadeByRank own{std::move(out.bases.list), std::move(out.groups), out.running};
  std::vector<MadeByRank> all;
  for (const auto& bytes : ranks.gather_all(packed(own)))
    all.push_back(unpacked<MadeByRank>(bytes));
  out.bases.list.clear();
  out.groups.clear();
  for (RunningTrack& track : out.running) track.groups.clear();
  std::vector<size_t> n_taken(all.size());
  for (const std::vector<Group>& pass : passes)
    for (const Group& group : pass) {
      MadeByRank& from = all[static_cast<size_t>(group.owner)];
      const size_t at = n_taken[static_cast<size_t>(group.owner)]++;
      out.bases.list.push_back(std::move(from.bases.at(at)));
      out.groups.push_back(std::move(from.groups.at(at)));
      for (size_t i = 0; i < out.running.size(); ++i)
        out.running[i].groups.push_back(from.running.at(i).groups.at(at));
    }
}

// Makes a group's basis from its moments, and from the layer's before it where there is one.
void add_basis(const Group& group, Moments& moments, const CalibrateOptions& options, Made& all) {
  Calibration& out = all.out;
  const int64_t d = moments.d();
  const int64_t k = *std::max_element(options.ranks.begin(), options.ranks.end());
  const double total = moments.total();
  if (!std::isfinite(total))
    throw Error(fmt::format("{}: the activations are not finite", label_of(group)),
                "are the weights damaged, or their values too large for this dtype?");
  if (moments.n_rows() < k || !(total > 0))
    throw Error(fmt::format("{}: {} rows are too few for rank {}", label_of(group),
                            total > 0 ? moments.n_rows() : 0, k),
                "a longer text, or a smaller --rank");
  const std::vector<double> a = moments.take();
  all.running.add({.layer = group.layer, .input = group.input, .d = d, .rank = k}, a);
  const Basis* before = group.layer > 0 ? out.bases.find(group.layer - 1, group.input) : nullptr;
  InheritOptions limits;
  if (options.inherit == Inheritance::kWherePaying)
    limits.max_iterations = shares_coordinates(group.input) ? affordable_iterations(d, k) : 0;
  const bool tried =
      before != nullptr && options.inherit != Inheritance::kNever && limits.max_iterations > 0;
  const Decomposition made = tried ? inherit(a, d, before->vectors, limits) : decompose(a, d, k);

  Basis basis{
      .layer = group.layer, .input = group.input, .d = d, .rank = k, .vectors = {}, .spectrum = {}};
  for (const double x : made.vectors) basis.vectors.push_back(static_cast<float>(x));
  for (const double value : made.values) basis.spectrum.push_back(value / total);
  GroupFigures figures;
  figures.layer = group.layer;
  figures.input = group.input;
  for (const int64_t rank : options.ranks) figures.energies.push_back(basis.energy(rank));
  figures.inherited = made.inherited;
  figures.iterations = made.iterations;
  if (tried) figures.start_energy = made.start_energy / total;
  figures.work = made.work;
  figures.fresh_work = eigen_work(d, k);
  figures.seconds = made.seconds;
  if (options.compare && tried) {
    const Decomposition fresh = decompose(a, d, k);
    figures.fresh_energy = fresh.captured(k) / total;
    figures.fresh_seconds = fresh.seconds;
  }
  out.bases.list.push_back(std::move(basis));
  out.groups.push_back(std::move(figures));
}

}  // namespace

std::vector<BasisInput> linear_inputs(const ModelSpec& spec) {
  std::vector<BasisInput> inputs = {BasisInput::kAttentionInput, BasisInput::kAttentionOutput};
  if (spec.block != BlockKind::kParallel) inputs.push_back(BasisInput::kMlpInput);
  inputs.push_back(BasisInput::kMlpInner);
  return inputs;
}

int64_t largest_paying_rank(int64_t d) {
  int64_t rank = d;
  while (rank > 0 && affordable_iterations(d, rank) == 0) --rank;
  return rank;
}

void check_ranks(const CalibrateOptions& options, const RowWidths& widths) {
  for (const int64_t rank : options.ranks) {
    if (rank < 1)
      throw Error(fmt::format("--rank {}: a basis has 1 direction or more", rank), "1 or more");
    for (const BasisInput input : options.inputs)
      if (rank > widths.of(input))
        throw Error(fmt::format("--rank {} is more than the {} numbers of {}", rank,
                                widths.of(input), basis_input_name(input)),
                    fmt::format("{} or less", widths.of(input)));
  }
}

Calibration calibrate(Model& model, TextStream& text, const CalibrateOptions& options,
                      const std::function<void(double)>& progress) {
  SLUICE_CHECK(!options.ranks.empty() && !options.inputs.empty());
  const RowWidths widths = model.spec().row_widths();
  check_ranks(options, widths);
  const auto windows = read_windows(text, model.context(), options.n_windows);
  Made made{{}, RunningBases(options.running)};
  Calibration& out = made.out;
  out.n_windows = static_cast<int64_t>(windows.size());
  for (const auto& window : windows) out.bases.n_tokens += static_cast<int64_t>(window.size());
  const int64_t k = *std::max_element(options.ranks.begin(), options.ranks.end());
  if (out.bases.n_tokens < k)
    throw Error(fmt::format("the text has {} tokens, a basis of rank {} takes as many at least",
                            out.bases.n_tokens, k),
                "a longer text, or a smaller --rank");

  const auto passes = plan_passes(model.spec(), options, widths);
  Communicator& ranks = *options.communicator;
  KvCache cache = model.make_cache(1, static_cast<int64_t>(windows.front().size()));
  const auto n_steps = static_cast<double>(passes.size() * windows.size());
  for (const std::vector<Group>& groups : passes) {
    MomentsPass pass(model, ranks, groups, {options.sinks, options.outlier_ratio});
    for (size_t i = 0; i < windows.size(); i += static_cast<size_t>(ranks.size())) {
      const size_t n = std::min(static_cast<size_t>(ranks.size()), windows.size() - i);
      pass.run(std::span(windows).subspan(i, n), cache);
      const auto n_done =
          static_cast<double>(static_cast<size_t>(out.n_passes) * windows.size() + i + n);
      if (progress) progress(n_done / n_steps);
    }
    ++out.n_passes;
    for (const Group& group : groups)
      if (group.owner == ranks.rank()) add_basis(group, pass.of(group), options, made);
    ranks.barrier();  // a rank without a basis ends all before more rows go to it
  }
  out.running = made.running.take();
  gather(ranks, passes, out);
  return std::move(made.out);
}

}  // namespace sluice::impl
