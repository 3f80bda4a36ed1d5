#include "eval/compare/perplexity.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "backend/cpu/primitives/score_rows.h"
#include "core/threads.h"
#include "eval/text/windows.h"

namespace sluice::impl {
namespace {

class WindowScorer {
 public:
  WindowScorer(Model& model, int64_t window_tokens)
      : model_(model),
        cache_(model.make_cache(1, window_tokens)),
        scores_(host_buffer(DType::kF32, {kScoreRows, model.spec().vocab})),
        losses_(kScoreRows) {}

  // Adds the loss of predicting tokens[1 ...] from those before.
  void score(std::span<const int32_t> tokens, RunningMean& loss) {
    cache_.truncate(0);
    const auto body = [&](int64_t first, ConstTensor hidden) {
      for (int64_t row = 0; row < hidden.rows(); row += kScoreRows) {
        const int64_t n_rows = std::min(kScoreRows, hidden.rows() - row);
        score_rows(
            hidden.rows_from(row, n_rows),
            tokens.subspan(static_cast<size_t>(first + row + 1), static_cast<size_t>(n_rows)),
            loss);
      }
    };
    forward_in_passes(model_, tokens.first(tokens.size() - 1), cache_, kPassTokens, body);
  }

 private:
  void score_rows(ConstTensor hidden, std::span<const int32_t> targets, RunningMean& loss) {
    const Tensor scores = scores_.view().rows_from(0, hidden.rows());
    model_.logits(hidden, scores);
    parallel_for(hidden.rows(), 4, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float* x = scores.row<float>(row);
        losses_[static_cast<size_t>(row)] =
            double{cpu::primitives::log_sum_exp(x, scores.row_elements())} -
            x[targets[static_cast<size_t>(row)]];
      }
    });
    for (int64_t row = 0; row < hidden.rows(); ++row) loss.add(losses_[static_cast<size_t>(row)]);
  }

  Model& model_;
  KvCache cache_;
  Buffer scores_;
  std::vector<double> losses_;
};

}  // namespace

double PerplexityResult::perplexity() const { return std::exp(loss.mean()); }
double PerplexityResult::standard_error() const { return perplexity() * loss.standard_error(); }

PerplexityResult evaluate_perplexity(Model& model, TextStream& text,
                                     const PerplexityOptions& options,
                                     const std::function<void(const PerplexityResult&)>& progress) {
  TextWindows windows(model, text, options.max_windows);
  PerplexityResult result;
  std::optional<WindowScorer> scorer;  // for windows of the first one's length or less
  while (windows.next()) {
    if (!scorer) scorer.emplace(model, static_cast<int64_t>(windows.tokens().size()) - 1);
    scorer->score(windows.tokens(), result.loss);
    check_finite(result.loss.mean());
    result.n_windows = windows.n_windows();
    if (progress) progress(result);
  }
  return result;
}

}  // namespace sluice::impl
