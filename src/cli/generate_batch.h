// sluice generate with several prompts, which are continued together.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/options/chat_option.h"
#include "cli/options/options.h"
#include "cli/options/plan_option.h"
#include "model/batch.h"

namespace sluice::impl::cli {

inline constexpr int64_t kDefaultBatch = 16, kMostBatch = 4096;

struct PromptLine {
  std::string text;
  std::optional<std::string> id;
};

// Prompts of a file, one JSON object to a line; empty lines are left out. Throws Error, with the
// line's number, for one that is not such an object, and for a file without prompts.
std::vector<PromptLine> read_prompt_lines(const std::string& path);

// Throws CLI::ValidationError for flags that are for one prompt.
void check_batch_flags(const CommonOptions& common, bool audited);

struct BatchCommand {
  const CommonOptions& common;
  const Checkpoint& checkpoint;
  const Tokenizer& tokenizer;
  const Acceleration& acceleration;
  const ChatChoice& chat;
  UniformChoice choice;
  bool always = false;  // follow the plan even where it was not measured faster
  int64_t n_live = kDefaultBatch;
  std::vector<PromptLine> lines;
  GenerateOptions options;
};

// Prints a line of JSON for every prompt, in their order. Throws Error, after all of them, where
// some failed.
void run_batch(BatchCommand command, Model& model);

}  // namespace sluice::impl::cli
