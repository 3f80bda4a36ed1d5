// Which needles a model finds, exactly and by plans, in the same prompts.

#pragma once

#include <functional>
#include <span>
#include <vector>

#include "eval/needle/needle.h"
#include "model/model.h"
#include "plan/plan.h"

namespace sluice::impl {

// The cases of a run: n_cases of each task, length and depth. Tasks have the same seeds.
struct NeedleGrid {
  std::vector<NeedleTask> tasks = {NeedleTask::kNeedle};
  std::vector<int64_t> contexts;  // tokens of a prompt, answer included
  int64_t n_depths = 10;          // evenly spaced: (i + 0.5) / n_depths
  int64_t n_cases = 1;
  uint64_t seed = 0;  // of the first case; the others count on
};

struct NeedleFind {
  bool found = false;  // each token of the answer is the likeliest behind those before it
  double logp = 0;     // of the whole answer, in nats
};

struct NeedleCase {
  NeedleOptions options;
  NeedlePrompt prompt;
  NeedleFind dense;
  std::vector<NeedleFind> runs;  // (n_plans)
};

// The prompts of a grid, by task, length, depth and seed. Cases of one length take stretches of the
// text one after the other, without the special tokens between documents; each begins as the text
// does. Throws Error for a length that the text or a needle does not fit.
std::vector<NeedleCase> make_needle_cases(const Tokenizer& tokenizer, std::span<const int32_t> text,
                                          const NeedleGrid& grid);

// Reads each prompt in passes and decodes its answer one token at a time, exactly and by every
// plan, and fills in the cases. Baselines take their share of the prompt's length, answer included.
// progress(share done, cases done), after each case. What linear
// plans need has been prepared. Throws Error for attention `paper`, which cannot decode.
void find_needles(Model& model, std::span<const Plan> plans, std::span<NeedleCase> cases,
                  const std::function<void(double, std::span<const NeedleCase>)>& progress);

// What became of the cases by one plan.
struct NeedleSummary {
  int64_t n_cases = 0, n_found = 0, n_dense_found = 0;
  std::vector<const NeedleCase*> lost;  // found by dense and not by the plan
};
NeedleSummary summarise_needles(std::span<const NeedleCase> cases, size_t plan);

// A share of cases, and its binomial standard error; 0 of no cases.
struct FoundShare {
  double share = 0, standard_error = 0;
};
FoundShare found_share(int64_t n_found, int64_t n_cases);

}  // namespace sluice::impl
