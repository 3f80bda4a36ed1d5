#include "eval/needle/find_needles.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "backend/cpu/primitives/score_rows.h"
#include "core/error.h"
#include "eval/text/windows.h"

namespace sluice::impl {
namespace {

NeedleFind find_needle(Model& model, const NeedlePrompt& prompt, const Plan& plan) {
  const std::span<const int32_t> tokens = prompt.tokens;
  const AttentionPlan attention = at_length(plan.attention, std::ssize(tokens));
  KvCache cache = model.make_cache(1, std::ssize(tokens), attention, plan.linear);
  const Buffer buffer = host_buffer(DType::kF32, {1, model.spec().vocab});
  const Tensor scores = buffer.view();
  NeedleFind find{.found = true};
  // Compares the prediction of the last row with the token at `next`.
  const auto compare = [&](ConstTensor hidden, int64_t next) {
    model.logits(hidden.rows_from(hidden.rows() - 1, 1), scores);
    const float* x = scores.row<float>(0);
    const int32_t token = tokens[static_cast<size_t>(next)];
    find.found = find.found && std::max_element(x, x + scores.row_elements()) - x == token;
    find.logp += double{x[token]} - double{cpu::primitives::log_sum_exp(x, scores.row_elements())};
  };
  forward_in_passes(model, tokens.first(static_cast<size_t>(prompt.n_prompt)), cache, kPassTokens,
                    [&](int64_t first, ConstTensor hidden) {
                      if (first + hidden.rows() == prompt.n_prompt)
                        compare(hidden, prompt.n_prompt);
                    });
  for (int64_t next = prompt.n_prompt + 1; next < std::ssize(tokens); ++next)
    compare(model.forward(tokens.subspan(static_cast<size_t>(next - 1), 1), cache), next);
  check_finite(find.logp);
  return find;
}

}  // namespace

std::vector<NeedleCase> make_needle_cases(const Tokenizer& tokenizer, std::span<const int32_t> text,
                                          const NeedleGrid& grid) {
  // Each haystack is one document: behind a mark between two a model begins anew and looks back
  // less.
  std::vector<int32_t> first, rest;  // the token that the text begins with, where it is special
  if (!text.empty() && tokenizer.is_special(text[0])) first.push_back(text[0]);
  std::copy_if(text.begin(), text.end(), std::back_inserter(rest),
               [&](int32_t token) { return !tokenizer.is_special(token); });
  std::vector<NeedleCase> cases;
  for (const NeedleTask task : grid.tasks) {
    uint64_t seed = grid.seed;
    for (const int64_t context : grid.contexts) {
      const int64_t n_stretches = std::max<int64_t>(std::ssize(rest) / context, 1);
      for (int64_t i = 0; i < grid.n_depths * grid.n_cases; ++i) {
        const int64_t depth = i / grid.n_cases;
        const NeedleOptions options{
            .context = context,
            .depth = (static_cast<double>(depth) + 0.5) / static_cast<double>(grid.n_depths),
            .seed = seed++,
            .task = task};
        const auto begin = rest.begin() + i % n_stretches * context;
        std::vector<int32_t> haystack = first;
        haystack.insert(haystack.end(), begin, begin + std::min(context, rest.end() - begin));
        cases.push_back({options, make_needle(tokenizer, haystack, options), {}, {}});
      }
    }
  }
  return cases;
}

void find_needles(Model& model, std::span<const Plan> plans, std::span<NeedleCase> cases,
                  const std::function<void(double, std::span<const NeedleCase>)>& progress) {
  if (std::any_of(plans.begin(), plans.end(),
                  [](const Plan& plan) { return has_paper(plan.attention); }))
    throw Error("attention paper shows tokens what follows them and cannot answer a question",
                "keys, copy or refine in its place");
  int64_t all = 0, done = 0;  // tokens, which stand for time
  for (const NeedleCase& next : cases) all += next.options.context;
  for (size_t i = 0; i < cases.size(); ++i) {
    NeedleCase& now = cases[i];
    now.dense = find_needle(model, now.prompt, {});
    for (const Plan& plan : plans) now.runs.push_back(find_needle(model, now.prompt, plan));
    done += now.options.context;
    if (progress)
      progress(static_cast<double>(done) / static_cast<double>(all), cases.first(i + 1));
  }
}

NeedleSummary summarise_needles(std::span<const NeedleCase> cases, size_t plan) {
  NeedleSummary summary;
  for (const NeedleCase& done : cases) {
    ++summary.n_cases;
    summary.n_found += done.runs[plan].found;
    summary.n_dense_found += done.dense.found;
    if (done.dense.found && !done.runs[plan].found) summary.lost.push_back(&done);
  }
  return summary;
}

FoundShare found_share(int64_t n_found, int64_t n_cases) {
  if (n_cases == 0) return {};
  const auto n = static_cast<double>(n_cases);
  const double share = static_cast<double>(n_found) / n;
  return {.share = share, .standard_error = std::sqrt(share * (1 - share) / n)};
}

}  // namespace sluice::impl
