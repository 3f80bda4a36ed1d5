// `analyze --joint` and `--bases`: what is asked for, and its table.

#pragma once

#include "cli/terminal/text_table.h"
#include "eval/analyze/analyze.h"
#include "eval/analyze/joint_profile.h"
#include "eval/analyze/one_pass.h"

namespace sluice::impl::cli {

// The text that is analysed, to be read from its beginning.
struct TextSource {
  std::string path, separator;
  const Tokenizer& tokenizer;
  TextStream open() const { return {path, tokenizer, separator}; }
};

struct JointInput {
  const Checkpoint& checkpoint;
  const AnalyzeOptions& analyze;
  std::vector<int64_t> contexts;
  std::vector<int64_t> ranks;  // empty: d_model / 16, / 8 and / 4, as far as the bases go
  std::string bases;           // a file, or empty: bases come from what follows the windows
};

// What to select, and with which bases.
struct JointRequest {
  JointOptions options;
  std::optional<SidecarBases> bases;  // of a file
  int64_t n_analyzed = 0;             // tokens, from the text's beginning
};

// Reads the bases and refuses what can be refused before the work.
JointRequest joint_request(const JointInput& input, const TextSource& text);

JointProfile run_joint(const JointRequest& request, const TextSource& text, Model& model,
                       bool quiet);

TextTable joint_table(const JointProfile& profile);
TextTable one_pass_table(const JointOptions& options, const std::vector<OnePassProfile>& profiles);

}  // namespace sluice::impl::cli
