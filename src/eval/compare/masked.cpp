#include "eval/compare/masked.h"

#include <algorithm>
#include <cmath>

#include "eval/compare/compare_plans.h"
#include "eval/text/host_rows.h"
#include "eval/text/windows.h"

namespace sluice::impl {
namespace {

// Ends the observation, whatever happens: the observer refers to its maker.
class LinearObservation {
 public:
  LinearObservation(Model& model, LinearObserver observer) : model_(model) {
    model_.observe_linear(std::move(observer));
  }
  ~LinearObservation() { model_.observe_linear({}); }
  LinearObservation(const LinearObservation&) = delete;
  LinearObservation& operator=(const LinearObservation&) = delete;

 private:
  Model& model_;
};

std::span<const float> row_of(const std::vector<float>& rows, size_t row, int64_t width) {
  const auto n = static_cast<size_t>(width);
  return std::span(rows).subspan(row * n, n);
}

// The smaller id of equals, as TokenComparison::same_top has it.
int32_t likeliest(std::span<const float> scores) {
  return static_cast<int32_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

}  // namespace

std::vector<RowError> row_errors(std::span<const float> exact, std::span<const float> other,
                                 int64_t width) {
  std::vector<RowError> errors;
  const auto n = static_cast<size_t>(width);
  for (size_t row = 0; row < exact.size(); row += n) {
    double x = 0, y = 0, product = 0, gap = 0;
    for (size_t i = row; i < row + n; ++i) {
      const double a = exact[i], b = other[i];
      x += a * a;
      y += b * b;
      product += a * b;
      gap += (a - b) * (a - b);
    }
    check_finite(x + y);
    if (x == 0 || y == 0) continue;
    errors.push_back({product / std::sqrt(x * y), std::sqrt(gap / x)});
  }
  return errors;
}

void RowErrors::add(std::span<const RowError> rows) {
  for (const RowError& row : rows) {
    cosine.add(row.cosine);
    relative.add(row.relative);
  }
}

void MaskedWindow::add_to(MaskedFigures& figures) const {
  for (const uint8_t is_right : base_right) figures.base_right.add(is_right);
  for (const uint8_t is_right : right) figures.right.add(is_right);
  figures.layers.resize(layers.size());
  for (size_t layer = 0; layer < layers.size(); ++layer) figures.layers[layer].add(layers[layer]);
  figures.hidden.add(hidden);
}

MaskedComparer::Seen MaskedComparer::run(const MaskedWindows& window, KvCache& cache) {
  const ModelSpec& spec = model_.spec();
  Backend& backend = model_.backend();
  Seen seen;
  seen.layers.resize(static_cast<size_t>(spec.n_layers));
  ConstTensor hidden;
  {
    const LinearObservation observation(model_, [&](const LinearSeen& rows) {
      if (rows.input == BasisInput::kMlpInput)
        seen.layers[static_cast<size_t>(rows.layer)] = host_rows(backend, rows.rows);
    });
    hidden = model_.forward(window.tokens(), cache);
  }
  seen.hidden = host_rows(backend, hidden);
  const auto vocab = static_cast<size_t>(spec.vocab);
  seen.scores.resize(window.places().size() * vocab);
  const Buffer rows = backend.allocate(backend.compute_dtype(), {kScoreRows, spec.d_model});
  for (size_t first = 0; first < window.places().size(); first += kScoreRows) {
    const auto places = window.places().subspan(
        first, std::min<size_t>(kScoreRows, window.places().size() - first));
    const Tensor some = rows.view().rows_from(0, std::ssize(places));
    backend.gather_rows(hidden, places, some);
    model_.logits(some, Tensor(seen.scores.data() + first * vocab, DType::kF32,
                               {std::ssize(places), spec.vocab}));
  }
  return seen;
}

void MaskedComparer::add_scores(const MaskedWindows& window, const Seen& exact, const Seen& other,
                                PlanWindow& to) const {
  const int64_t vocab = model_.spec().vocab;
  BaseRow base;
  for (size_t i = 0; i < window.truth().size(); ++i) {
    const int32_t truth = window.truth()[i];
    const auto exact_row = row_of(exact.scores, i, vocab), row = row_of(other.scores, i, vocab);
    base.set(exact_row);
    const TokenComparison token = base.against(row, truth);
    check_finite(token.base_loss + token.loss + token.kl);
    to.tokens.push_back(token);
    to.masked->base_right.push_back(likeliest(exact_row) == truth);
    to.masked->right.push_back(likeliest(row) == truth);
  }
}

std::vector<PlanWindow> MaskedComparer::compare(const MaskedWindows& window) {
  const int64_t n = std::ssize(window.tokens()), width = model_.spec().d_model;
  KvCache exact_cache = model_.make_cache(1, n);
  const Seen exact = run(window, exact_cache);
  std::vector<PlanWindow> found(plans_.size());
  for (size_t i = 0; i < plans_.size(); ++i) {
    KvCache cache = model_.make_cache(1, n, plans_[i].attention, plans_[i].linear);
    const Seen other = run(window, cache);
    PlanWindow& plan = found[i];
    plan.add_work(cache, model_.spec());
    plan.masked.emplace();
    add_scores(window, exact, other, plan);
    for (size_t layer = 0; layer < exact.layers.size(); ++layer)
      plan.masked->layers.push_back(row_errors(exact.layers[layer], other.layers[layer], width));
    plan.masked->hidden = row_errors(exact.hidden, other.hidden, width);
  }
  return found;
}

}  // namespace sluice::impl
