// What single changes cost in quality, each measured from its own layer on.

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tune/heads.h"
#include "tune/loss.h"
#include "tune/measurements.h"

namespace sluice::impl {

std::string group_text(const GroupPlan& plan);

struct ChangeOptions {
  HeadOptions heads;
  std::vector<GroupPlan> linear;  // kinds that groups may be; what they need is prepared
  // The loss that all changes of a plan may make together. Every change is looked at in two
  // windows; those that would use up too much of it, or so little that it does not show, and far
  // keys of a kind that another beats, in no more.
  double budget = 0;
  Communicator* communicator = &alone();  // that changes are divided over
};

class Changes {
 public:
  Changes(Model& model, const std::vector<TuneWindow>& windows, const ChangeOptions& options,
          Measurements& measurements);

  // What is not known yet. progress(share done, what is measured now), before each.
  void measure(const std::function<void(double, const std::string&)>& progress);

  // Mean KL per token. The same whatever more another contract has measured.
  double kl(const HeadChange& change) const;
  double kl(int64_t layer, BasisInput input, const GroupPlan& group) const;

 private:
  struct Change {
    std::string name;
    int64_t layer;
    Plan plan;
    std::vector<std::string> rivals = {};  // of other far keys, at the same cost
  };

  Change change_of(const HeadChange& change) const;
  Change change_of(int64_t layer, BasisInput input, const GroupPlan& group) const;
  std::vector<Change> all() const;
  bool is_known(const Change& change, size_t window) const;
  double mean_kl(const Change& change) const;
  double first_look(const std::string& name) const;  // mean KL in the first windows
  bool is_settled(const Change& change) const;

  Model& model_;
  const std::vector<TuneWindow>& windows_;
  const ChangeOptions options_;
  Measurements& measurements_;
  PlanShape shape_;
  int64_t n_scored_;  // predictions compared in each window
};

}  // namespace sluice::impl
