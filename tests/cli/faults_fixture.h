// What tests of faults share: a shell with the program in a folder of its own.

#pragma once

#include <sys/wait.h>

#include <cstdlib>

#include "cli/refusals.h"

namespace sluice::impl::test {

class Faults : public testing::Test {
 protected:
  // Runs lines of a shell, in which `sluice` is the program. What it prints to stderr is in `said`.
  // Under a sanitizer without the search for leaks, as in run_program.h.
  int shell(const std::string& lines) {
    const std::string script =
        out.write("script", "export ASAN_OPTIONS=detect_leaks=0:$ASAN_OPTIONS\nsluice() { '" +
                                program_path() + "' \"$@\"; }\ncd '" + out.path().string() + "'\n" +
                                lines + "\n")
            .string();
    const int status = std::system(
        ("sh '" + script + "' </dev/null 2>'" + (out.path() / "err").string() + "'").c_str());
    said = read_bytes(out.path() / "err");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  void expect_said(const std::string& line) const { EXPECT_EQ(said, "sluice: " + line + "\n"); }
  std::string file(const std::string& name) const { return read_bytes(out.path() / name); }
  bool is_results(const std::string& name) const {
    return nlohmann::json::accept(file(name)) && nlohmann::json::parse(file(name)).is_object();
  }
  // Files of the folder that are neither ours nor the script's.
  int64_t n_left() const {
    int64_t n = 0;
    for (const auto& entry : std::filesystem::directory_iterator(out.path()))
      if (entry.path().extension() == ".part") ++n;
    return n;
  }

  ModelFolder folder;
  const TempDir out;
  std::string said;
  const std::string model = "-m '" + folder.path() + "' ";
  const std::string generate = "sluice generate " + model + "-p abab -n 4 --quiet ";
};

}  // namespace sluice::impl::test
