// Text after a prompt, token by token.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/model.h"
#include "sluice/plan.h"

namespace sluice {

// One token of an answer, as it comes.
struct GeneratedToken {
  int32_t id = 0;  // -1 in a last call, where text was held back until the end
  // What is certain of the answer with it, whole characters; may be empty. Valid during the call.
  std::string_view text;
};

// How the loss of a plan is measured while it runs.
enum class AuditMode : uint8_t {
  kReplay,  // the exact model follows with a cache of its own: the loss of the whole run
  kStep,    // single steps are run exactly too, on the plan's cache: the loss of each alone
};

struct GenerateOptions {
  int64_t max_tokens = 128;
  // 0 takes the likeliest token; higher is more varied.
  float temperature = 0;
  int64_t top_k = 0;                   // sample from the k likeliest; 0: all
  float top_p = 1;                     // from the likeliest that reach this probability together
  float min_p = 0;                     // drop tokens less likely than this share of the likeliest
  float repetition_penalty = 1;        // above 1 makes tokens already seen less likely
  uint64_t seed = 0;                   // the same seed gives the same text
  std::vector<std::string> stop = {};  // the answer ends before the first of these
  bool ignore_end = false;             // go on past the model's end token
  Plan plan = {};
  // Follow the plan where Plan::why_dense() says otherwise, too.
  bool always = false;
  // Measure the loss of the plan: in passes of so many tokens (kReplay), or on one step of so many
  // (kStep). 0: not; at most 1024. A plan of tune() whose max_kl is in danger reads more keys from
  // there on.
  int64_t audit_every = 0;
  AuditMode audit_mode = AuditMode::kReplay;
  // Called for every token; false ends the text behind it. What it throws passes through.
  std::function<bool(const GeneratedToken&)> on_token = {};
};

// Why a text ended.
enum class End : uint8_t { kLength, kEndToken, kStopString, kContextFull, kCallback };

// A mean of measured KLs in nats, and its 95% interval, which is 0 to infinity for fewer than two
// samples.
struct MeasuredKl {
  int64_t n_samples = 0;
  double mean = 0, low = 0, high = 0;
};

struct AuditReport {
  MeasuredKl kl;            // of generated tokens, since delta was last changed
  MeasuredKl prompt_kl;     // kReplay: of tokens of the prompt
  int64_t n_steps = 0;      // tokens generated under audit
  int64_t n_compared = 0;   // of these, how many were compared
  double delta_factor = 1;  // below 1 where the plan had to read more to keep its max_kl
};

struct GenerateResult {
  std::string text;             // the answer, without stop string
  std::vector<int32_t> tokens;  // of the answer, without the end token
  End end = End::kLength;
  int64_t n_prompt = 0;        // tokens of the prompt
  double prefill_seconds = 0;  // reading it
  double decode_seconds = 0;   // all tokens after the first
  bool followed_plan = false;  // false: everything was exact
  std::string why_dense;       // where a plan was given and not followed
  std::optional<AuditReport> audit;
};

// Continues a prompt, or begins a text where it is empty. Throws Error for an encoder, a checkpoint
// without tokenizer or output matrix, a prompt as long as the context, options out of range, a plan
// that the model cannot follow, and an audit without a plan.
SLUICE_API GenerateResult generate(Model& model, std::string_view prompt,
                                   const GenerateOptions& options = {});

struct BatchOptions {
  int64_t max_live = 16;  // texts that are generated at one time
  // Called for every token of the text of that prompt; false ends that text behind it. What it
  // throws passes through, and ends all of them.
  std::function<bool(size_t index, const GeneratedToken&)> on_token = {};
};

// What became of one prompt of several.
struct BatchResult {
  std::optional<Error> error;  // the prompt was refused; the others were not affected
  GenerateResult result;       // otherwise
};

// Continues several prompts together, each as generate() would with the same options: products read
// the weights once for all of them. Results are in the order of the prompts. Greedy texts are those
// of generate() up to round-off, by which another token may win where two are nearly as likely.
// Throws Error as generate() does for the model, the options and the plan, for an audit and for
// options.on_token, which are of one text, and for max_live below 1. A prompt as long as the
// context is an error of its own result.
SLUICE_API std::vector<BatchResult> generate_batch(Model& model,
                                                   std::span<const std::string> prompts,
                                                   const GenerateOptions& options = {},
                                                   const BatchOptions& batch = {});

}  // namespace sluice
