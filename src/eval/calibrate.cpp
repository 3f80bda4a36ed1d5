#include "eval/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "backend/exact.h"
#include "core/error.h"
#include "eval/text/windows.h"
#include "subspace/eigen.h"
#include "subspace/inherit.h"
#include "subspace/moments.h"

namespace sluice::impl {
namespace {

// One layer's input.
struct Group {
  int64_t layer;
  BasisInput input;
};

std::string label_of(const Group& group) {
  return fmt::format("layer {}, {}", group.layer, basis_input_name(group.input));
}

// Whether rows of different layers have coordinates in common. Those of the residual stream do,
// heads and neurons of one layer have nothing to do with those of another: on three trained models
// their subspaces were as alike as random ones.
bool shares_coordinates(BasisInput input) {
  return input != BasisInput::kAttentionOutput && input != BasisInput::kMlpInner;
}

// Groups whose moments share a pass over the text.
std::vector<std::vector<Group>> plan_passes(const ModelSpec& spec, const CalibrateOptions& options,
                                            const RowWidths& widths) {
  std::vector<std::vector<Group>> passes;
  int64_t left = 0;
  for (int64_t layer = 0; layer < spec.n_layers; ++layer)
    for (const BasisInput input : options.inputs) {
      const int64_t bytes = Moments::bytes(widths.of(input));
      if (passes.empty() || bytes > left) {
        passes.emplace_back();
        left = options.memory;
      }
      passes.back().push_back({layer, input});
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

// A device's rows on the host.
ConstTensor on_host(Backend& backend, const ConstTensor& rows, Buffer& memory) {
  if (rows.device() == Device::kCpu) return rows;
  memory = host_buffer(rows.dtype(), rows.shape());
  backend.download(rows, memory.view());
  return memory.view();
}

// One pass over the text: the moments of some groups.
class MomentsPass {
 public:
  MomentsPass(Model& model, const std::vector<Group>& groups, const CalibrateOptions& options)
      : model_(model), options_(options) {
    for (const Group& group : groups)
      moments_.emplace(std::pair(group.layer, group.input),
                       Moments(model.spec().row_widths().of(group.input)));
    model_.observe_linear([this](const LinearSeen& seen) { add(seen); });
    model_.observe([this](const AttentionSeen& seen) { add(seen); });
  }
  ~MomentsPass() {
    model_.observe_linear({});
    model_.observe({});
  }
  MomentsPass(const MomentsPass&) = delete;
  MomentsPass& operator=(const MomentsPass&) = delete;

  void run(std::span<const int32_t> window, KvCache& cache) {
    cache.truncate(0);
    exempt_.clear();
    // An encoder sees a window whole.
    const int64_t step = model_.spec().causal ? kPassTokens : static_cast<int64_t>(window.size());
    forward_in_passes(model_, window, cache, step, [](int64_t, const ConstTensor&) {});
  }

  Moments& of(const Group& group) { return moments_.at({group.layer, group.input}); }

 private:
  Moments* find(int64_t layer, BasisInput input) {
    const auto found = moments_.find({layer, input});
    return found == moments_.end() ? nullptr : &found->second;
  }

  void add(const LinearSeen& seen) {
    Buffer memory;
    if (Moments* moments = find(seen.layer, seen.input))
      moments->add(on_host(model_.backend(), seen.rows, memory));
  }

  // Rows that selection compares, exempt tokens left out.
  void add(const AttentionSeen& seen) {
    Moments* normed = find(seen.layer, BasisInput::kSelectionNormed);
    Moments* residual = find(seen.layer, BasisInput::kSelectionResidual);
    if (normed == nullptr && residual == nullptr) return;
    Buffer memory, more_memory;
    const ConstTensor rows = on_host(model_.backend(), seen.residual, memory);
    auto& exempt =
        exempt_.try_emplace(seen.layer, options_.sinks, options_.outlier_ratio).first->second;
    std::vector<bool> skip;
    for (int64_t t = 0; t < rows.rows(); ++t) {
      const double inverse = exempt.needs_norms() ? inverse_norm(rows, t) : 0;
      skip.push_back(exempt.next(inverse > 0 ? 1 / inverse : 0));
    }
    if (residual != nullptr) residual->add_unit(rows, skip);
    if (normed != nullptr)
      normed->add_unit(on_host(model_.backend(), seen.input, more_memory), skip);
  }

  Model& model_;
  const CalibrateOptions& options_;
  std::map<std::pair<int64_t, BasisInput>, Moments> moments_;
  std::map<int64_t, ExemptTokens> exempt_;  // per layer, of the current window
};

struct Made {
  Calibration out;
  RunningBases running;
};

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
  KvCache cache = model.make_cache(1, static_cast<int64_t>(windows.front().size()));
  const auto n_steps = static_cast<double>(passes.size() * windows.size());
  for (const std::vector<Group>& groups : passes) {
    MomentsPass pass(model, groups, options);
    for (size_t i = 0; i < windows.size(); ++i) {
      pass.run(windows[i], cache);
      const auto n_done =
          static_cast<double>(static_cast<size_t>(out.n_passes) * windows.size() + i);
      if (progress) progress((n_done + 1) / n_steps);
    }
    ++out.n_passes;
    for (const Group& group : groups) add_basis(group, pass.of(group), options, made);
  }
  out.running = made.running.take();
  return std::move(made.out);
}

}  // namespace sluice::impl
