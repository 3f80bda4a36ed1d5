// Speed of a plan relative to the exact model, and the lengths from which on it is faster.

#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "eval/runs/bench_model.h"
#include "plan/plan_file.h"
#include "tune/text_split.h"

namespace sluice::impl {

// The first n tokens of windows, over and over where they are fewer.
std::vector<int32_t> tokens_of(const std::vector<TuneWindow>& windows, int64_t n);

// At the context's length and below it, in powers of two, ascending; at most most_tokens.
std::vector<int64_t> lengths_to_time(int64_t context, int64_t most_tokens);

struct PlanSpeedOptions {
  int64_t context = 0;
  PlanObjective objective = PlanObjective::kPrefill;
  AttentionMode mode = AttentionMode::kRefine;  // of the layers that are not dense
  int rounds = 5;
};

struct PlanSpeed {
  BenchResult bench;
  // Prompt lengths from which on the plan is faster than dense by the objective, and in the rest
  // not slower; null: at none.
  std::optional<int64_t> prefill_from, decode_from;
  bool pays = true;  // by the objective, at some length; memory does without
};

// What measured times mean for an objective.
PlanSpeed judge_speed(BenchResult bench, PlanObjective objective);

// progress(share done, what is done now).
PlanSpeed time_plan(Model& model, const Plan& plan, const std::vector<TuneWindow>& windows,
                    const PlanSpeedOptions& options,
                    const std::function<void(double, const std::string&)>& progress);

}  // namespace sluice::impl
