#include "eval/perplexity.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "backend/cpu/score_rows.h"
#include "core/error.h"
#include "core/threads.h"

namespace sluice {
namespace {

// Tokens of one pass through the layers, and rows of scores that exist at one time: at a
// vocabulary of 128 Ki, 128 rows are 64 MiB.
constexpr int64_t kPassTokens = 2048;
constexpr int64_t kScoreRows = 128;

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
    const auto n = static_cast<int64_t>(tokens.size()) - 1;
    for (int64_t begin = 0; begin < n; begin += kPassTokens) {
      const int64_t count = std::min(kPassTokens, n - begin);
      const ConstTensor hidden = model_.forward(
          tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)), cache_);
      for (int64_t row = 0; row < count; row += kScoreRows) {
        const int64_t rows = std::min(kScoreRows, count - row);
        score_rows(hidden.rows_from(row, rows),
                   tokens.subspan(static_cast<size_t>(begin + row + 1), static_cast<size_t>(rows)),
                   loss);
      }
    }
  }

 private:
  void score_rows(ConstTensor hidden, std::span<const int32_t> targets, RunningMean& loss) {
    const Tensor scores = scores_.view().rows_from(0, hidden.rows());
    model_.logits(hidden, scores);
    parallel_for(hidden.rows(), 4, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float* x = scores.row<float>(row);
        losses_[static_cast<size_t>(row)] = double{cpu::log_sum_exp(x, scores.row_elements())} -
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

void RunningMean::add(double x) {
  ++count_;
  const double delta = x - mean_;
  mean_ += delta / static_cast<double>(count_);
  squares_ += delta * (x - mean_);
}

double RunningMean::standard_error() const {
  if (count_ < 2) return 0;
  const auto n = static_cast<double>(count_);
  return std::sqrt(squares_ / (n - 1) / n);
}

double PerplexityResult::perplexity() const { return std::exp(loss.mean()); }
double PerplexityResult::standard_error() const { return perplexity() * loss.standard_error(); }

PerplexityResult evaluate_perplexity(Model& model, TextStream& text,
                                     const PerplexityOptions& options,
                                     const std::function<void(const PerplexityResult&)>& progress) {
  if (!model.spec().causal)
    throw Error(model.spec().family + " is an encoder, perplexity is defined for causal models",
                "eval needs a causal model such as GPT-2 or Llama");
  const int64_t context = model.context();
  PerplexityResult result;
  std::optional<WindowScorer> scorer;  // for windows of the first one's length or less
  std::vector<int32_t> window;         // context tokens to read and the one after them
  while (options.max_windows == 0 || result.n_windows < options.max_windows) {
    text.read(context + 1 - static_cast<int64_t>(window.size()), window);
    if (window.size() < 2) break;
    if (!scorer) scorer.emplace(model, static_cast<int64_t>(window.size()) - 1);
    scorer->score(window, result.loss);
    if (!std::isfinite(result.loss.mean()))
      throw Error("the model's scores are not finite",
                  "are the weights damaged, or their values too large for this dtype?");
    ++result.n_windows;
    if (progress) progress(result);
    if (static_cast<int64_t>(window.size()) <= context) break;
    window.erase(window.begin(), window.end() - 1);
  }
  if (result.loss.count() == 0)
    throw Error("the text has fewer than two tokens, nothing can be predicted",
                "-f takes a text file with at least a few sentences");
  return result;
}

}  // namespace sluice
