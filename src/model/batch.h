// Several texts generated together. Every pass has the next token of each text that is being
// continued and pieces of the prompts that are being read; texts that end make room for others.

#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "core/error.h"
#include "model/answer.h"

namespace sluice::impl {

// The texts of one model that are live at one time. Greedy answers are those of generate() up to
// round-off: products over more rows may round otherwise, and near a tie another token may win.
class Batch {
 public:
  using Done = std::function<void(int64_t id, GenerateResult result)>;

  Batch(Model& model, const Tokenizer& tokenizer) : model_(model), tokenizer_(tokenizer) {}

  int64_t n_live() const { return std::ssize(live_); }
  // Takes in a prompt under an id of the caller's. Throws Error as generate() does, which leaves
  // the others as they are. options.step and options.prompt_pass are not for batches.
  void add(int64_t id, std::string_view prompt, const GenerateOptions& options, Answer::Emit emit);
  void add(int64_t id, Prompt prompt, const GenerateOptions& options, Answer::Emit emit);
  // One pass, after which `done` is called for every text that ended. Needs a live one. Where the
  // model throws, the batch is of no further use.
  void step(const Done& done) {
    begin_pass();
    end_pass(done);
  }
  // The two halves of it: up to the scores, and from the chosen tokens on. Of a divided model,
  // other batches may have passes between them, in which this one is on its path through the ranks.
  // Nothing is added between them.
  void begin_pass();
  void end_pass(const Done& done);

 private:
  using Clock = std::chrono::steady_clock;
  struct Live {
    int64_t id;
    std::unique_ptr<Answer> answer;
    Clock::time_point begun;
    double prefill_seconds = 0;
  };
  // Those of the next pass: every text that is past its prompt, and pieces of prompts up to
  // kPrefillTokens together, or one piece. A piece is never cut, so it is that of generate().
  std::vector<Live*> next_pass();
  // Scores of the last row of each, where its prompt is complete, (n, vocab) f32.
  void read_scores(const ConstTensor& hidden, std::span<const int32_t> rows);
  void remove_ended(const Done& done);

  Model& model_;
  const Tokenizer& tokenizer_;
  std::vector<Live> live_;
  std::vector<Live*> scored_;    // of the pass that has begun: whose next token is due
  std::vector<int32_t> chosen_;  // (scored), on the last rank
  Buffer last_rows_;             // (n, d_model)
  std::vector<float> scores_;    // (n, vocab)
};

struct BatchPrompt {
  std::string_view text;
  bool dense = false;                // does not follow the plan
  std::vector<int32_t> tokens = {};  // in place of the text, where there are any
};

// What became of a prompt: `error` where it was refused, which ends no other.
struct BatchAnswer {
  std::string text;
  GenerateResult result;
  std::optional<Error> error;
};

struct BatchEvents {
  // Called for every token after its text was added to the answer; false ends that text there.
  std::function<bool(int64_t index, int32_t token, std::string_view text)> token = {};
  // Called once for every prompt, in the order in which they end.
  std::function<void(int64_t index, BatchAnswer answer)> done = {};
};

// Continues every prompt with the same options; at most n_live at a time, in the order given. A
// pipeline has as many groups of them in flight as it has stages.
void generate_batch(Model& model, const Tokenizer& tokenizer, std::span<const BatchPrompt> prompts,
                    const GenerateOptions& options, int64_t n_live, const BatchEvents& events);

}  // namespace sluice::impl
