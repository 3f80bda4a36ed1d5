// What refusals have in common: the right exit code (1: the input or the machine, 2: the command
// line), one line on stderr with a hint, nothing on stdout that could pass for a result.

#pragma once

#include <algorithm>

#include "cli/model_folder.h"
#include "cli/run_program.h"

namespace sluice::impl::test {

struct Refusal {
  std::string name;
  std::function<Args(ModelFolder&)> build;  // damages the folder and gives the command line
  std::vector<std::string> fragments;       // of the line on stderr
  int code = 1;
  std::string golden = "gpt2";
};

inline void PrintTo(const Refusal& refusal, std::ostream* stream) { *stream << refusal.name; }

inline void expect_no_crash(const RunResult& result) {
  EXPECT_FALSE(result.timed_out) << result;
  EXPECT_LT(result.code, 128) << result;
  for (const char* report : {"Sanitizer", "runtime error", "internal error", "terminate called"})
    EXPECT_EQ(result.err.find(report), std::string::npos) << result;
}

// One line, from the program, with every fragment and a hint.
inline void expect_complaint(const RunResult& result, int code,
                             const std::vector<std::string>& fragments) {
  expect_no_crash(result);
  EXPECT_EQ(result.code, code) << result;
  EXPECT_TRUE(result.err.starts_with("sluice: ")) << result;
  EXPECT_TRUE(result.err.ends_with(")\n")) << result;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result;
  EXPECT_NE(result.err.find(" (hint: "), std::string::npos) << result;
  EXPECT_LT(result.err.size(), 600u) << result;
  for (const std::string& fragment : fragments)
    EXPECT_NE(result.err.find(fragment), std::string::npos) << "expected: " << fragment << "\n"
                                                            << result;
}

inline void expect_refused(const Refusal& refusal) {
  ModelFolder folder(refusal.golden);
  const RunResult result = run_program(refusal.build(folder));
  expect_complaint(result, refusal.code, refusal.fragments);
  EXPECT_EQ(result.out, "") << result;
}

inline std::string name_of(const testing::TestParamInfo<Refusal>& info) { return info.param.name; }

inline Args eval_of(const ModelFolder& folder, Args more = {}) {
  Args args{"eval", "-m", folder.path(), "-f", folder.write("text.txt", letter_text(200))};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

inline Args generate_of(const ModelFolder& folder, Args more = {}) {
  Args args{"generate", "-m", folder.path(), "-n", "4"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

inline Args eval_of_file(const ModelFolder& folder, const std::string& model) {
  return {"eval", "-m", model, "-f", folder.write("text.txt", letter_text(200))};
}

}  // namespace sluice::impl::test
