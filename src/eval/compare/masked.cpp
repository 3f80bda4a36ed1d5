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

void RowErrors::add(std::span<const float> exact, std::span<const float> other, int64_t width) {
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
    cosine.add(product / std::sqrt(x * y));
    relative.add(std::sqrt(gap / x));
  }
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
                                size_t plan, CompareResult& result) const {
  const int64_t vocab = model_.spec().vocab;
  BaseRow base;
  for (size_t i = 0; i < window.truth().size(); ++i) {
    const int32_t truth = window.truth()[i];
    const auto exact_row = row_of(exact.scores, i, vocab), row = row_of(other.scores, i, vocab);
    base.set(exact_row);
    const TokenComparison token = base.against(row, truth);
    check_finite(token.base_loss + token.loss + token.kl);
    result.plans[plan].add(token);
    MaskedFigures& figures = *result.plans[plan].masked;
    figures.base_right.add(likeliest(exact_row) == truth ? 1 : 0);
    figures.right.add(likeliest(row) == truth ? 1 : 0);
  }
}

void MaskedComparer::compare(const MaskedWindows& window, CompareResult& result) {
  const int64_t n = std::ssize(window.tokens()), width = model_.spec().d_model;
  KvCache exact_cache = model_.make_cache(1, n);
  const Seen exact = run(window, exact_cache);
  for (size_t i = 0; i < plans_.size(); ++i) {
    KvCache cache = model_.make_cache(1, n, plans_[i].attention, plans_[i].linear);
    const Seen other = run(window, cache);
    PlanComparison& plan = result.plans[i];
    plan.work.add(cache, model_.spec());
    plan.linear.add(cache, model_.spec());
    if (cache.length() >= plan.cache.n_tokens) plan.cache = cache.memory();
    if (!plan.masked) {
      plan.masked.emplace();
      plan.masked->layers.resize(exact.layers.size());
    }
    add_scores(window, exact, other, i, result);
    for (size_t layer = 0; layer < exact.layers.size(); ++layer)
      plan.masked->layers[layer].add(exact.layers[layer], other.layers[layer], width);
    plan.masked->hidden.add(exact.hidden, other.hidden, width);
  }
}

}  // namespace sluice::impl
