// What the attention of a model does: exactly, approximately in all layers alike, or as a file of
// `sluice tune` says for every layer and head.

#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "sluice/error.h"
#include "sluice/export.h"

namespace sluice {

enum class AttentionMode : uint8_t {
  kDense,   // exact
  kRefine,  // far keys as the means of clusters, or, where a query needs them, as they are
  kKeys,    // far keys merged into clusters for good, which saves memory
  kCopy,    // among representative tokens alone; the others copy the output of theirs
};

// The defaults are those of the program's flags of the same names. What does not belong to the mode
// has no effect.
struct AttentionOptions {
  AttentionMode mode = AttentionMode::kDense;
  // kRefine: a query reads the members of a cluster where the error of reading its mean is
  // estimated at delta or more. 0 reads all of them, infinity none.
  double delta = 0.005;
  // kRefine: every query of a prompt decides for itself, as in decoding. Slower.
  bool strict = false;
  // kKeys, kCopy: tokens of cosine 1 - tau^2 or more are redundant. 0 merges none.
  double tau = 0.3;
  // kKeys: every layer chooses its own tau from the first tokens of a sequence.
  bool tau_auto = false;
  // kRefine, kKeys: tokens before a query that stay exact.
  std::optional<int64_t> window = {};
  // First tokens that always stay exact.
  std::optional<int64_t> sinks = {};
  // Layers before this one stay dense.
  int64_t from_layer = 0;
};

// What a plan is meant to save.
enum class Objective : uint8_t {
  kPrefill,      // time of reading a prompt
  kDecode,       // time of generating
  kMemory,       // of keys and values
  kReads,        // keys read in a prompt, which are the same on every machine
  kDecodeReads,  // the same in generating
};

// What a plan of `tune` was made for.
struct PlanInfo {
  std::string family;    // of the model
  int64_t n_layers = 0;  // the same
  int64_t context = 0;   // tokens, up to which its loss was measured
  Objective objective = Objective::kPrefill;
  // The loss that was accepted; what is absent was not limited.
  std::optional<double> max_kl, max_kl_p99, max_kl_p999, max_ppl_ratio;
  // Lengths of prompts from which on it was measured faster than dense, reading them and generating
  // after them; absent: at none, or nothing was measured.
  std::optional<int64_t> prefill_from, decode_from;
  std::string measured_on;  // number format, processor and threads; empty: nothing was measured
  bool linear = false;      // linear layers are approximated too, not attention alone
};

// A value: copies are cheap and share what they hold. Safe to use in several threads.
class SLUICE_API Plan {
 public:
  Plan();  // dense
  Plan(const Plan&);
  Plan& operator=(const Plan&);
  Plan(Plan&&) noexcept;
  Plan& operator=(Plan&&) noexcept;
  ~Plan();

  // The same in all layers. Throws Error for an option out of range. Whoever uses the plan throws
  // Error where the model cannot follow it.
  static Plan uniform(const AttentionOptions& options);
  // A file of `sluice tune` or save(). Throws Error for a file that is missing or not a plan.
  // Whoever uses the plan throws Error for a model other than the one it was made for.
  static Plan load(const std::filesystem::path& path);

  // Writes a plan that comes from load() or tune(). Throws Error for another, for one
  // whose bases would not be in its folder, and where the file cannot be written.
  void save(const std::filesystem::path& path) const;

  // Whether it leaves everything exact.
  bool is_dense() const;
  // Of a plan from load() or tune(); nothing for another.
  std::optional<PlanInfo> info() const;
  // Why a prompt of so many tokens, with up to max_tokens generated after it, is better run dense:
  // the plan was not measured so far, or not measured to be faster there. Empty where the plan
  // should be followed, and always for plans of uniform() that are not dense.
  std::string why_dense(int64_t n_prompt, int64_t max_tokens) const;

  struct SLUICE_LOCAL State;  // of the library

 private:
  friend struct Access;
  explicit Plan(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;  // null: dense
};

}  // namespace sluice
