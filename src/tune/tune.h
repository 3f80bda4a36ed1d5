// From a loss that is accepted to the fastest plan that keeps it. docs/algorithm.md, section 6.

#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "eval/runs/bench_model.h"
#include "tune/contract.h"
#include "tune/loss.h"
#include "tune/measurements.h"
#include "tune/times.h"

namespace sluice::impl {

struct TuneOptions {
  Contract contract;
  PlanObjective objective = PlanObjective::kPrefill;
  SplitOptions split;
  bool needles = true;  // among the windows of text
  HeadOptions heads;
  std::vector<GroupPlan> linear;  // kinds that groups may be; what they need is prepared
  int bench_rounds = 5;
  std::string machine = {};  // that times are taken on: those of others are not used
  // Single changes and windows are divided over these; rank 0 takes times, while the others wait.
  Communicator* communicator = &alone();
};

// One plan that was tried.
struct TuneStep {
  double budget = 0;     // of predicted KL
  double predicted = 0;  // sum of single changes
  Loss loss;
  bool held_out = false;  // measured there, or on calibration windows
};

struct TuneResult {
  TextSplit text;
  Plan plan;                  // dense where nothing pays
  std::string dense_because;  // then, why
  double predicted_kl = 0;
  double dense_cost = 0, cost = 0;  // of what may change, by the table of costs
  Loss calibration, held_out;
  std::vector<TuneStep> steps;
  BenchResult speed;           // of the plan, at several lengths; empty where it is dense
  BenchResult rejected_speed;  // of one that was not faster, and was made dense for it
  // Prompt lengths from which on the plan was faster than dense by the objective, and in the rest
  // not slower; null: at none.
  std::optional<int64_t> prefill_from, decode_from;
  double seconds = 0;
  bool resumed = false;
};

// progress(share done, what is done now). Every rank returns the same, but for the times of speed
// and rejected_speed, which rank 0 has.
TuneResult tune(Model& model, TextStream& text, const TuneOptions& options,
                Measurements& measurements,
                const std::function<void(double, const std::string&)>& progress);

}  // namespace sluice::impl
