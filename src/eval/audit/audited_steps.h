// Decode steps whose loss is measured while they run, on the text at hand. docs/algorithm.md,
// section 7, "Audit".

#pragma once

#include <functional>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "eval/audit/audit.h"
#include "eval/compare/base_scores.h"
#include "model/generate.h"
#include "model/model.h"
#include "plan/plan.h"

namespace sluice::impl {

enum class AuditMode : uint8_t {
  // The exact model follows with a cache of its own, `every` tokens in one pass, and every token is
  // compared: the KL of two separate runs. A sample is the mean of a pass.
  kReplay,
  // One step of every `every` is run exactly too, on the cache that the plan made: the KL of that
  // step's own approximation, without what earlier steps have left in the cache. A sample is a
  // step, drawn uniformly from its `every`.
  kStep,
};

std::string_view audit_mode_name(AuditMode mode);  // "replay", "step"
std::optional<AuditMode> audit_mode_of(std::string_view name);

// The hidden states of so many steps are kept for a pass, and of so many tokens of a prompt.
inline constexpr int64_t kMostAudited = 1024;
inline constexpr int64_t kMostPromptAudited = 256;

struct AuditOptions {
  AuditMode mode = AuditMode::kReplay;
  int64_t every = 0;  // 1 to kMostAudited; 0: no audit
  uint64_t seed = 0;
  std::optional<double> max_kl = {};  // of the contract; without, nothing is tightened
};

// After a sample.
struct AuditRecord {
  int64_t position = 0;  // tokens in the cache
  AuditInterval kl;      // of the samples since delta was last changed
  double delta_factor = 1;
  bool tightened = false;  // delta_factor is smaller from here on, and the samples begin anew
};

// Throws Error for a plan whose steps cannot be run exactly on its own cache.
void check_audit(const AuditOptions& options, const AttentionPlan& plan);

class AuditedSteps {
 public:
  // on_tightened is called for a contract in danger. The model must outlive the steps. Plans of
  // caches are `audited` where steps are run exactly or a contract may tighten them.
  AuditedSteps(Model& model, const AuditOptions& options,
               std::function<void(const AuditRecord&)> on_tightened = {});

  // Runs the last of `tokens`, all of the sequence so far, after the others, which `cache` has. The
  // scores, (1, vocab) f32 on the host, are those of the plan: an audit changes none of them, but
  // by tightening.
  void step(std::span<const int32_t> tokens, KvCache& cache, const Tensor& scores);
  // Tokens that are no steps follow, such as the next message of a conversation: a pass that is not
  // complete is dropped.
  void end_answer() { n_in_pass_ = 0; }
  // Runs the exact model over these, which `cache` has and the first pass would do otherwise.
  void follow(std::span<const int32_t> tokens, const KvCache& cache);

  // kReplay: a prompt is audited too. read_prompt() takes the plan's hidden states of its tokens
  // from `first` on, pass by pass. It cuts the prompt into groups of `every` tokens or a little
  // more, at most kMostPromptAudited of them, draws one token of each by the seed, and keeps its
  // hidden state. finish_prompt(), after the last step, compares them: the exact model runs over
  // the prompt, unless the steps have made it do so.
  void read_prompt(std::span<const int32_t> prompt, int64_t first, const ConstTensor& hidden);
  void finish_prompt();

  const AuditOptions& options() const { return options_; }
  const std::vector<AuditRecord>& records() const { return records_; }
  AuditInterval kl() const { return audit_.interval(); }  // since delta was last changed
  AuditInterval prompt_kl() const { return prompt_audit_.interval(); }
  int64_t n_prompt() const { return std::ssize(prompt_); }
  double delta_factor() const { return delta_factor_; }
  int64_t n_compared() const { return n_compared_; }  // tokens, in all
  int64_t n_steps() const { return n_steps_; }        // in all

 private:
  void follow(std::span<const int32_t> tokens, int64_t capacity);
  void compare_prompt(int64_t first, const ConstTensor& hidden);
  // KL of each row; hidden states of the same tokens.
  std::vector<double> compare(const ConstTensor& exact, const ConstTensor& plan);
  void compare_pass(std::span<const int32_t> tokens, KvCache& cache);
  void add(double kl, KvCache& cache);

  Model& model_;
  AuditOptions options_;
  std::function<void(const AuditRecord&)> on_tightened_;
  std::mt19937_64 random_;
  Audit audit_;
  std::vector<AuditRecord> records_;
  double delta_factor_ = 1;
  int64_t n_compared_ = 0, n_steps_ = 0;
  int64_t n_in_pass_ = 0;         // steps, of the `every` at hand
  int64_t chosen_ = 0;            // kStep: which of the `every` at hand
  std::optional<KvCache> exact_;  // kReplay: the exact model's
  Buffer hidden_;                 // kReplay: (every, d), of the plan's steps since the last pass
  BaseScores scores_;             // kReplay: of kScoreRows; kStep: of one
  // Of the prompt: its tokens, those to compare, and the plan's hidden states of them, (n, d).
  std::vector<int32_t> prompt_;
  std::vector<int64_t> prompt_positions_;
  Buffer prompt_hidden_;
  Audit prompt_audit_;
};

// Lets generate() run its steps, and show its passes over the prompt, to an audit, which must
// outlive the call; finish_prompt() is left to the caller.
void run_audited(AuditedSteps& audit, GenerateOptions& options);

}  // namespace sluice::impl
