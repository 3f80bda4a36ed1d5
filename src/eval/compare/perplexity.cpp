#include "eval/compare/perplexity.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "backend/cpu/primitives/score_rows.h"
#include "core/threads.h"
#include "eval/text/windows.h"
#include "ranks/divide.h"

namespace sluice::impl {
namespace {

class WindowScorer {
 public:
  WindowScorer(Model& model, int64_t window_tokens, const PerplexityOptions& options)
      : model_(model),
        window_tokens_(window_tokens),
        pass_tokens_(std::max<int64_t>(
            (options.pass_tokens > 0 ? options.pass_tokens : kPassTokens) / options.n_batch, 1)),
        scores_(host_buffer(DType::kF32, {kScoreRows, model.spec().vocab})),
        losses_(kScoreRows) {}

  // The losses of predicting tokens [1, ...) of each window from those before: all windows go
  // through the model together, a pass at a time.
  std::vector<std::vector<double>> score(std::span<const std::vector<int32_t>> windows) {
    while (caches_.size() < windows.size()) caches_.push_back(model_.make_cache(1, window_tokens_));
    for (KvCache& cache : caches_) cache.truncate(0);
    std::vector<std::vector<double>> losses(windows.size());
    while (true) {
      std::vector<SequenceTokens> pass;
      std::vector<size_t> at;  // the windows of the pass
      for (size_t i = 0; i < windows.size(); ++i) {
        const auto rest = std::span(windows[i])
                              .first(windows[i].size() - 1)
                              .subspan(static_cast<size_t>(caches_[i].length()));
        if (rest.empty()) continue;
        const auto n = std::min(rest.size(), static_cast<size_t>(pass_tokens_));
        pass.push_back({rest.first(n), &caches_[i]});
        at.push_back(i);
      }
      if (pass.empty()) return losses;
      const ConstTensor hidden = model_.forward_ragged(pass);
      int64_t first = 0;
      for (size_t i = 0; i < pass.size(); ++i) {
        const auto n = std::ssize(pass[i].tokens);
        score_rows(hidden.rows_from(first, n),
                   std::span(windows[at[i]]).subspan(losses[at[i]].size() + 1), losses[at[i]]);
        first += n;
      }
    }
  }

 private:
  // Of rows of one window; targets begins with the token after the first row's.
  void score_rows(const ConstTensor& hidden, std::span<const int32_t> targets,
                  std::vector<double>& losses) {
    for (int64_t row = 0; row < hidden.rows(); row += kScoreRows)
      score_few(hidden.rows_from(row, std::min(kScoreRows, hidden.rows() - row)),
                targets.subspan(static_cast<size_t>(row)), losses);
  }
  void score_few(const ConstTensor& hidden, std::span<const int32_t> targets,
                 std::vector<double>& losses) {
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
    losses.insert(losses.end(), losses_.begin(), losses_.begin() + hidden.rows());
  }

  Model& model_;
  int64_t window_tokens_, pass_tokens_;
  std::vector<KvCache> caches_;
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
  SLUICE_CHECK(options.n_batch > 0);
  std::vector<std::vector<int32_t>> together;  // the windows of one item
  const auto next = [&] {
    together.clear();
    while (std::ssize(together) < options.n_batch && windows.next())
      together.emplace_back(windows.tokens().begin(), windows.tokens().end());
    return !together.empty();
  };
  const auto work = [&] {
    if (!scorer) scorer.emplace(model, std::ssize(together.front()) - 1, options);
    return scorer->score(together);
  };
  const auto use = [&](const std::vector<std::vector<double>>& scored) {
    for (const std::vector<double>& losses : scored) {
      for (const double loss : losses) result.loss.add(loss);
      check_finite(result.loss.mean());
      ++result.n_windows;
      if (progress) progress(result);
    }
  };
  divide<std::vector<std::vector<double>>>(*options.communicator, next, work, use);
  return result;
}

}  // namespace sluice::impl
