#include "eval/compare/compare_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "eval/compare/base_scores.h"
#include "eval/text/windows.h"
#include "model/sampler.h"
#include "ranks/divide.h"

namespace sluice::impl {
namespace {

// Copies of hidden states: a model's own are valid until its next pass only.
class HiddenRows {
 public:
  HiddenRows(const Model& model, int64_t n_rows)
      : backend_(model.backend()),
        rows_(backend_.allocate(backend_.compute_dtype(), {n_rows, model.spec().d_model})) {}

  void keep(int64_t first, const ConstTensor& hidden) {
    std::vector<int32_t> all(static_cast<size_t>(hidden.rows()));
    std::iota(all.begin(), all.end(), 0);
    backend_.gather_rows(hidden, all, rows_.view().rows_from(first, hidden.rows()));
  }
  ConstTensor rows(int64_t first, int64_t n) const { return rows_.view().rows_from(first, n); }

 private:
  Backend& backend_;
  Buffer rows_;  // (n_rows, d_model)
};

class WindowComparer {
 public:
  WindowComparer(Model& model, std::span<const Plan> plans, int64_t window_tokens)
      : model_(model),
        plans_(plans),
        base_hidden_(model, window_tokens),
        base_scores_(model, kScoreRows) {
    for (size_t i = 0; i < plans.size(); ++i) hidden_.emplace_back(model, window_tokens);
  }

  // Predicts tokens[1 ...] from those before, exactly and by every plan.
  std::vector<PlanWindow> compare(std::span<const int32_t> tokens) {
    const auto inputs = tokens.first(tokens.size() - 1);
    run(inputs, {}, base_hidden_);
    std::vector<PlanWindow> found(plans_.size());
    for (size_t i = 0; i < plans_.size(); ++i)
      found[i].add_work(run(inputs, plans_[i], hidden_[i]), model_.spec());
    for (size_t first = 0; first < inputs.size(); first += kScoreRows)
      compare_rows(static_cast<int64_t>(first),
                   tokens.subspan(first + 1, std::min<size_t>(kScoreRows, inputs.size() - first)),
                   found);
    return found;
  }

 private:
  KvCache run(std::span<const int32_t> inputs, const Plan& plan, HiddenRows& hidden) {
    const auto n = static_cast<int64_t>(inputs.size());
    // A cache of its own for each window and plan: only one exists at a time.
    KvCache cache = model_.make_cache(1, n, plan.attention, plan.linear);
    forward_in_passes(model_, inputs, cache, cache.needs_whole_sequence() ? n : kPassTokens,
                      [&](int64_t first, const ConstTensor& rows) { hidden.keep(first, rows); });
    return cache;
  }

  // `next` are the tokens to be predicted from rows [first, first + next.size()).
  void compare_rows(int64_t first, std::span<const int32_t> next, std::vector<PlanWindow>& found) {
    const auto n = static_cast<int64_t>(next.size());
    base_scores_.set(0, base_hidden_.rows(first, n));
    for (size_t plan = 0; plan < plans_.size(); ++plan)
      for (const TokenComparison& token :
           base_scores_.compare(0, hidden_[plan].rows(first, n), next)) {
        check_finite(token.base_loss + token.loss + token.kl);
        found[plan].tokens.push_back(token);
      }
  }

  Model& model_;
  std::span<const Plan> plans_;
  HiddenRows base_hidden_;
  std::vector<HiddenRows> hidden_;  // per plan
  BaseScores base_scores_;          // of kScoreRows
};

// The n likeliest tokens one after another, whatever they are.
std::vector<int32_t> continue_greedily(Model& model, std::span<const int32_t> prompt, int64_t n,
                                       const Plan& plan) {
  std::vector<float> scores(static_cast<size_t>(model.spec().vocab));
  const Tensor scores_view(scores.data(), DType::kF32, {1, model.spec().vocab});
  KvCache cache =
      model.make_cache(1, static_cast<int64_t>(prompt.size()) + n, plan.attention, plan.linear);
  forward_in_passes(model, prompt, cache, kPassTokens, [&](int64_t, const ConstTensor& hidden) {
    if (cache.length() == static_cast<int64_t>(prompt.size()))
      model.logits(hidden.rows_from(hidden.rows() - 1, 1), scores_view);
  });
  Sampler likeliest({});
  std::vector<int32_t> answer;
  while (true) {
    answer.push_back(likeliest.pick(scores, {}));
    if (static_cast<int64_t>(answer.size()) == n) return answer;
    model.logits(model.forward({&answer.back(), 1}, cache), scores_view);
  }
}

// Characters of UTF-8 that two texts begin with alike.
int64_t common_characters(const std::string& a, const std::string& b) {
  const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  const auto starts = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; };
  // One that differs in a later byte is not alike.
  const int64_t n = std::count_if(a.begin(), end, starts);
  return end != a.end() && !starts(*end) ? n - 1 : n;
}

void match_generation(Model& model, std::span<const Plan> plans, std::span<const int32_t> prompt,
                      int64_t n, const Tokenizer& tokenizer, std::vector<PlanWindow>& found) {
  const std::vector<int32_t> exact = continue_greedily(model, prompt, n, {});
  for (size_t i = 0; i < plans.size(); ++i) {
    const std::vector<int32_t> answer = continue_greedily(model, prompt, n, plans[i]);
    const auto differs = std::mismatch(exact.begin(), exact.end(), answer.begin()).first;
    found[i].generation = {.tokens = static_cast<double>(differs - exact.begin()),
                           .characters = static_cast<double>(common_characters(
                               tokenizer.decode(exact, /*skip_special=*/false),
                               tokenizer.decode(answer, /*skip_special=*/false)))};
  }
}

// The first half of a window's inputs, at least one token.
std::span<const int32_t> half_of(std::span<const int32_t> window) {
  return window.first(std::max<size_t>((window.size() - 1) / 2, 1));
}

void check_generation(const Model& model, std::span<const Plan> plans, int64_t n_predict) {
  if (n_predict == 0) return;
  for (const Plan& plan : plans)
    if (has_paper(plan.attention))
      throw Error("attention paper sees the whole text at once and cannot generate",
                  "leave --predict out, or compare --attention keys");
  const int64_t half = std::max<int64_t>(model.context() / 2, 1);
  if (n_predict > model.context() - half)
    throw Error(fmt::format("half a window and {} tokens do not fit a context of {}", n_predict,
                            model.context()),
                model.context() > half ? fmt::format("--predict {} or less", model.context() - half)
                                       : fmt::format("--context {} or more", 2 * n_predict));
}

// Adds windows to a result, in their order.
auto adder(CompareResult& result, const std::function<void(const CompareResult&)>& progress) {
  return [&](const std::vector<PlanWindow>& window) {
    const size_t n_first = result.n_windows == 0 ? result.first_tokens.size() : 0;
    for (size_t i = 0; i < window.size(); ++i) result.plans[i].add(window[i], n_first);
    ++result.n_windows;
    if (progress) progress(result);
  };
}

CompareResult compare_masked(Model& model, TextStream& text, std::span<const Plan> plans,
                             const CompareOptions& options,
                             const std::function<void(const CompareResult&)>& progress) {
  if (options.n_predict > 0)
    throw Error(model.spec().family + " is an encoder and cannot generate",
                "leave --predict out, or a causal model such as GPT-2 or Llama");
  MaskedWindows windows(model, text, options.mask, options.max_windows);
  MaskedComparer comparer(model, plans);
  CompareResult result;
  result.plans.resize(plans.size());
  divide<std::vector<PlanWindow>>(
      *options.communicator, [&] { return windows.next(); },
      [&] { return comparer.compare(windows); }, adder(result, progress));
  return result;
}

// Differences of two numbers per window.
std::optional<PairedInterval> paired(const std::vector<WindowLoss>& windows,
                                     const std::function<double(size_t)>& difference) {
  std::vector<WindowSum> sums;
  for (size_t i = 0; i < windows.size(); ++i) sums.push_back({difference(i), windows[i].n_tokens});
  return paired_interval(sums);
}

}  // namespace

void PlanWindow::add_work(const KvCache& from, const ModelSpec& spec) {
  work.add(from, spec);
  linear.add(from, spec);
  cache = from.memory();
}

void PlanComparison::add(const PlanWindow& window, size_t n_first) {
  WindowLoss& sums = windows.emplace_back();
  for (const TokenComparison& token : window.tokens) {
    tokens.add(token);
    sums.kl += token.kl;
    sums.loss += token.loss;
    sums.base_loss += token.base_loss;
    ++sums.n_tokens;
    if (first_kl.size() + 1 < n_first) first_kl.push_back(static_cast<float>(token.kl));
  }
  work.add_window(window.work);
  linear += window.linear;
  // The last window of a text may be shorter.
  if (window.cache.n_tokens >= cache.n_tokens) cache = window.cache;
  if (window.generation) {
    generation_match.add(window.generation->tokens);
    generation_match_characters.add(window.generation->characters);
  }
  if (!window.masked) return;
  if (!masked) masked.emplace();
  window.masked->add_to(*masked);
}

std::optional<PairedInterval> paired_log_ratio(const PlanComparison& plan) {
  return paired(plan.windows,
                [&](size_t i) { return plan.windows[i].loss - plan.windows[i].base_loss; });
}

std::optional<PairedInterval> paired_kl(const PlanComparison& plan, const PlanComparison& other) {
  SLUICE_CHECK(plan.windows.size() == other.windows.size());
  return paired(plan.windows, [&](size_t i) { return plan.windows[i].kl - other.windows[i].kl; });
}

std::optional<PairedInterval> paired_loss(const PlanComparison& plan, const PlanComparison& other) {
  SLUICE_CHECK(plan.windows.size() == other.windows.size());
  return paired(plan.windows,
                [&](size_t i) { return plan.windows[i].loss - other.windows[i].loss; });
}

CompareResult compare_plans(Model& model, TextStream& text, std::span<const Plan> plans,
                            const CompareOptions& options,
                            const std::function<void(const CompareResult&)>& progress) {
  if (!model.spec().causal) return compare_masked(model, text, plans, options, progress);
  TextWindows windows(model, text, options.max_windows);
  check_generation(model, plans, options.n_predict);
  CompareResult result;
  result.plans.resize(plans.size());
  std::optional<WindowComparer> comparer;  // for windows of the first one's length or less
  const auto next = [&] {
    if (!windows.next()) return false;
    if (result.first_tokens.empty()) {
      const auto kept =
          windows.tokens().first(std::min<size_t>(windows.tokens().size(), kFirstTokens));
      result.first_tokens.assign(kept.begin(), kept.end());
    }
    return true;
  };
  const auto work = [&] {
    const auto tokens = windows.tokens();
    if (!comparer) comparer.emplace(model, plans, std::ssize(tokens) - 1);
    std::vector<PlanWindow> found = comparer->compare(tokens);
    if (options.n_predict > 0 && windows.n_windows() <= kGenerationWindows)
      match_generation(model, plans, half_of(tokens), options.n_predict, text.tokenizer(), found);
    return found;
  };
  divide<std::vector<PlanWindow>>(*options.communicator, next, work, adder(result, progress));
  return result;
}

}  // namespace sluice::impl
