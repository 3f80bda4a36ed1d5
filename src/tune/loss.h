// What plans cost in quality, against the exact model on the same windows.

#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "eval/compare/base_scores.h"
#include "model/model.h"
#include "plan/plan.h"
#include "ranks/communicator.h"
#include "tune/text_split.h"

namespace sluice::impl {

// A mean over tokens, with the error of a mean over independent units, which are uneven in size.
class UnitMean {
 public:
  void add(int64_t unit, double sum, int64_t count);
  double mean() const;
  double standard_error() const;  // 0 for fewer than two units
  int64_t count() const { return count_; }
  int64_t n_units() const { return std::ssize(units_); }

 private:
  struct Unit {
    double sum = 0;
    int64_t count = 0;
  };
  std::map<int64_t, Unit> units_;
  double sum_ = 0;
  int64_t count_ = 0;
};

// An answer is found when each of its tokens is the likeliest behind those before it.
struct Needles {
  int64_t n = 0;
  int64_t by_dense = 0;  // found by the exact model
  int64_t found = 0;     // of these, by the plan
  int64_t lost() const { return by_dense - found; }
};

// What a plan does in one window.
struct LossPart {
  int64_t unit = 0, n_scored = 0;
  double kl = 0, log_ratio = 0;   // sums over the tokens scored
  std::vector<double> kl_values;  // (n_scored)
  bool has_needle = false, by_dense = false, found = false;

  template <typename Archive>
  void transfer(Archive& archive) {
    archive(unit, n_scored, kl, log_ratio, kl_values, has_needle, by_dense, found);
  }
};

struct Loss {
  UnitMean kl;
  LogHistogram kl_values;  // token by token
  UnitMean log_ratio;      // ln(ppl / ppl of the exact model)
  Needles needles;
  double ppl_ratio() const;
  double ppl_ratio_stderr() const;

  void add(const LossPart& part);
};

// The exact model on one window: what changes are compared with.
class WindowReference {
 public:
  enum class Purpose : uint8_t {
    kPlans,
    // Changes of one layer: keeps the residual stream before every layer, or every few where memory
    // is short, and compares fewer predictions.
    kChanges,
  };
  WindowReference(Model& model, const TuneWindow& window, Purpose purpose);
  // Predictions that are compared in a window: all, or as many as there is memory for.
  static int64_t n_scored_in(const Model& model, const TuneWindow& window, Purpose purpose);

  // What the plan does on the window. first_layer: before it the plan is exact.
  LossPart loss_of(const Plan& plan, int64_t first_layer);
  // The same as a sum of KL over the tokens looked at.
  double kl_sum(const Plan& plan, int64_t first_layer);
  int64_t n_scored() const { return std::ssize(scored_); }

 private:
  Tensor residual(int64_t layer) const;      // of a multiple of stride_
  int32_t truth_at(int32_t position) const;  // the token that a position predicts
  // Whether the answer is the likeliest by `hidden`, (n_tokens, d_model) of the window.
  bool finds_answer(const ConstTensor& hidden);
  // The rows of `hidden` that are compared, at most kScoreRows at a time.
  void for_scored(const ConstTensor& hidden,
                  const std::function<void(int64_t first, const ConstTensor& rows)>& use);

  Model& model_;
  const TuneWindow& window_;
  // Positions whose predictions are compared: evenly spread, but for a needle's answer, the last.
  std::vector<int32_t> scored_;
  bool dense_finds_ = false;  // the answer of a needle
  int64_t stride_ = 1;        // of the layers whose residual is kept
  Buffer residuals_;          // (n_layers / stride, n_tokens, d_model) f32, or none
  std::optional<BaseScores> base_scores_;
};

// The exact model against itself.
Loss no_loss(const Model& model, const std::vector<TuneWindow>& windows);

// Plans one after another on the same windows: as far as there is memory for it, the exact model
// runs once on each. Windows are divided over ranks, the same for every plan.
class PlanLosses {
 public:
  PlanLosses(Model& model, const std::vector<TuneWindow>& windows, Communicator& ranks = alone())
      : model_(model), windows_(windows), ranks_(ranks), kept_(windows.size()) {}

  // Of each plan, on the first windows.
  std::vector<Loss> of(std::span<const Plan> plans, size_t n_windows);
  // Of one, on all.
  Loss of(const Plan& plan) { return of({&plan, 1}, windows_.size())[0]; }

 private:
  std::vector<LossPart> on_window(size_t window, std::span<const Plan> plans);

  Model& model_;
  const std::vector<TuneWindow>& windows_;
  Communicator& ranks_;
  std::vector<std::unique_ptr<WindowReference>> kept_;  // of this rank's windows
  int64_t kept_bytes_ = 0;
};

}  // namespace sluice::impl
