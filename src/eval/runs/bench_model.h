// Speed of a model with exact and accelerated attention, in interleaved runs: prefill of some
// tokens, and decoding after them. docs/results.md, "What bench measures".

#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/audit/audited_steps.h"
#include "eval/results.h"
#include "eval/timing.h"
#include "model/linear_work.h"
#include "model/model.h"
#include "plan/plan.h"

namespace sluice::impl {

// What is timed in each round. The first is always exact attention, the baseline of the others.
struct BenchCandidate {
  std::string label = "dense";   // for people
  std::string mode = "dense";    // of attention, or where that is dense of linear layers
  std::string linear = "dense";  // of linear layers
  nlohmann::json settings = {};  // for results.json
  Plan plan = {};                // without layers: exact
  // Whether it follows the plan where so many tokens are read and so many decoded after them; it
  // runs dense where not. Empty: it always does, and there is nothing to tell about it.
  std::function<bool(int64_t n_tokens, int64_t n_predict)> follows = {};
  AuditOptions audit = {};  // of its decode steps; what the exact model does before is not timed
};

struct BenchOptions {
  std::vector<int64_t> lengths;  // tokens of prefill, each at least 1
  int64_t n_predict = 128;       // tokens to decode after them; 0: none
  int repeat = 5;                // samples, after a round to warm up
};

// One sample in ms: of a whole prefill, or of one token decoded (the mean of n_predict).
struct BenchSample {
  double total = 0, select = 0, attend = 0, linear = 0;
  double rest() const { return total - select - attend - linear; }
};

struct BenchCase {
  std::string name;                     // "pp512", "tg@512"
  int64_t n_tokens = 0;                 // of the prefill
  int64_t tokens_per_sample = 0;        // n_tokens, or 1 when decoding
  size_t candidate = 0;                 // whose
  bool ran_dense = false;               // that one did not follow its plan
  std::vector<BenchSample> samples;     // in the order of the rounds
  Ratio speedup{1, 1, 1};               // against exact attention, round by round
  std::optional<double> reps_fraction;  // tokens that stand for themselves, over n_tokens
  // Of the pairs of a joint selection, those its basis decided; of a prefill alone.
  std::optional<double> pairs_dropped_fraction = {};
  // Of linear layers, for the tokens of the case alone; null where they are dense. A token decoded
  // reads a share of the weights, those of a prefill share what they read: null.
  std::optional<double> fast_path_fraction = {}, weight_bytes_fraction = {};
  std::vector<AuditRecord> audit = {};  // where its steps are audited: after each sample

  std::vector<double> totals_ms() const;
  // Whether other work of the machine disturbed it; its rounds were then repeated once before.
  bool disturbed() const { return spread_of(totals_ms()) > kMostSpread; }
  // The sample in the middle, or the mean of the two there: its total is the median of totals, and
  // its parts add up to it.
  BenchSample middle() const;
  double tokens_per_s() const;
};

struct BenchResult {
  BenchOptions options;
  int64_t n_tokens = 0;                    // there were to read
  std::vector<BenchCandidate> candidates;  // exact attention, then those given
  std::vector<BenchCase> cases;            // by length; prefill of all candidates, then decoding
  std::vector<std::string> left_out;       // what could not be measured and why, a line each

  std::string label_of(const BenchCase& found) const;  // its candidate's, and whether it ran dense
};

// The most tokens that these options can make use of.
int64_t bench_tokens(const BenchOptions& options);
// Throws Error for a length that n_tokens of text, or a context, do not reach.
void check_lengths(const std::vector<int64_t>& lengths, int64_t context, int64_t n_tokens);
// The same tokens every time, for a bench without a text.
std::vector<int32_t> random_tokens(const ModelSpec& spec, int64_t n);

// tokens: what is read, and decoded after it. Lengths beyond them or the model's context throw
// Error; decoding that would pass either, or that a model or mode cannot do, is left out. All
// candidates' caches of one length exist at a time.
// progress(share done, what is measured now), before each piece of work.
BenchResult bench_model(Model& model, std::span<const int32_t> tokens,
                        std::vector<BenchCandidate> accelerated, const BenchOptions& options,
                        const std::function<void(double, const std::string&)>& progress);

// The whole results.json of `sluice bench`; an origin without a text stands for random tokens.
nlohmann::json bench_results(const ResultsOrigin& origin, const BenchResult& result);

}  // namespace sluice::impl
