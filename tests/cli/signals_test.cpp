// Signals at moments that are known: once progress is shown, or while a file is being written.

#include <signal.h>
#include <sys/ptrace.h>

#include "cli/faults_fixture.h"
#include "cli/terminal.h"

namespace sluice::impl {
namespace {

using namespace test;
namespace fs = std::filesystem;

class Signals : public Faults {
 protected:
  // Seconds of work and more: runs are stopped as soon as they show something. With one thread, so
  // that it is the one that takes the signal.
  const std::string text = out.write("text.txt", letter_text(2'000'000)).string();
  const std::string results = (out.path() / "r.json").string();
  const std::string plan = (out.path() / "plan.json").string();

  Args tune(const Args& more) const {
    return joined(
        {"tune", "-m", folder.path(), "-c", "32", "-o", plan, "--window", "8", "--no-needles",
         "--attention", "keys", "--max-kl", "0.5", "--objective", "memory"},
        more);
  }
  // Ends the run by a signal once `shown` is on its terminal; returns what there is at the end.
  std::string stopped(const Args& args, const std::string& shown, int signal) {
    Terminal terminal(joined(args, {"-t", "1", "--json", results}));
    if (!terminal.wait_for(shown)) return "";
    EXPECT_EQ(::kill(terminal.child(), signal), 0);
    EXPECT_EQ(terminal.wait_for_end(), 128 + signal) << args.front() << terminal.shown();
    EXPECT_TRUE(terminal.is_as_at_first());
    EXPECT_EQ(n_left(), 0);
    EXPECT_FALSE(fs::exists(results));
    return terminal.shown();
  }
};

// What was printed stays; a bar of progress does not.
TEST_F(Signals, EndEvalAndGenerateAfterWhatWasPrinted) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string shown =
        stopped({"eval", "-m", folder.path(), "-f", text}, "       3 ", signal);
    const size_t bar = shown.rfind("eval ["), wiped = shown.rfind("\r\033[K");
    EXPECT_TRUE(bar == shown.npos || (wiped != shown.npos && wiped > bar)) << shown;
  }
  const ModelFolder endless("llama");
  endless.set_config("max_position_embeddings", 20000);
  for (const int signal : {SIGINT, SIGTERM})
    stopped({"generate", "-m", endless.path(), "-p", "abab", "-n", "19000", "--ignore-eos"}, "abab",
            signal);
}

TEST_F(Signals, TuneSaysWhereItsMeasurementsAre) {
  const std::string kept = plan + ".measurements";
  const Args args = tune({"-f", text, "--windows", "2000", "--held-out", "2000"});
  for (const int signal : {SIGINT, SIGTERM}) {
    Terminal terminal(args);
    ASSERT_TRUE(terminal.wait_for("tune ["));
    while (!fs::exists(kept)) ASSERT_TRUE(terminal.wait_for("left"));
    ASSERT_EQ(::kill(terminal.child(), signal), 0);
    ASSERT_TRUE(terminal.wait_for("sluice: stopped; what was measured is in " + kept +
                                  ", and the same command goes on from there"));
    EXPECT_EQ(terminal.wait_for_end(), 128 + signal) << terminal.shown();
    EXPECT_TRUE(nlohmann::json::accept(read_bytes(kept)));
    EXPECT_FALSE(fs::exists(plan));
    EXPECT_EQ(n_left(), 0);
    fs::remove(kept);
  }
}

// Whether it is killed before its end does not matter to what is compared.
TEST_F(Signals, TuneGoesOnAfterKillAndFindsTheSamePlan) {
  std::string documents;
  for (int i = 0; i < 12; ++i) documents += letter_text(90) + std::to_string(i) + "<|endoftext|>";
  const Args args = tune({"-f", out.write("documents.txt", documents).string(), "--windows", "2",
                          "--held-out", "3", "--tau", "0.3,0.5"});
  const auto found = [&] {
    const nlohmann::json made = read_results(plan);
    return nlohmann::json{made.at("layers"), made.at("contract"), made.at("model")};
  };
  run_ok(args);
  const nlohmann::json whole = found();
  const std::string kept = plan + ".measurements";
  fs::remove(kept);
  fs::remove(plan);
  {
    test::detail::Pipe first, second;
    const pid_t child = test::detail::start_program(joined(args, {"--quiet"}), first, second);
    pid_t ended = 0;
    while (!fs::exists(kept) && (ended = ::waitpid(child, nullptr, WNOHANG)) == 0) ::usleep(1000);
    if (ended == 0) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
  }
  EXPECT_TRUE(nlohmann::json::accept(read_bytes(kept)));
  run_ok(args);
  EXPECT_EQ(found(), whole);
  // A file that the killed run was writing is nobody's any more; there is at most one.
  EXPECT_LE(n_left(), 1);
}

// The program under a tracer, which stops it at every call of the system.
class Traced {
 public:
  explicit Traced(const Args& args) {
    std::vector<std::string> words{program_path()};
    words.insert(words.end(), args.begin(), args.end());
    std::vector<std::string> lines = test::detail::environment();
    const std::vector<char*> argv = test::detail::pointers(words),
                             envp = test::detail::pointers(lines);
    child_ = ::fork();
    if (child_ == 0) {
      const int nowhere = ::open("/dev/null", O_WRONLY);
      ::dup2(nowhere, STDOUT_FILENO);
      ::dup2(nowhere, STDERR_FILENO);
      if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(126);
      ::execve(argv[0], argv.data(), envp.data());
      ::_exit(127);
    }
    allowed_ = ::waitpid(child_, &status_, 0) == child_ && WIFSTOPPED(status_);
  }
  ~Traced() {
    if (WIFSTOPPED(status_)) release(SIGKILL);
  }
  Traced(const Traced&) = delete;
  Traced& operator=(const Traced&) = delete;
  // False where tracing is forbidden.
  bool allowed() const { return allowed_; }
  // Runs to the end of a call of the main thread after which `is_time()`. False: it ended first.
  bool run_until(const std::function<bool()>& is_time) {
    while (WIFSTOPPED(status_)) {
      if (is_time()) return true;
      const int signal = WSTOPSIG(status_) == SIGTRAP ? 0 : WSTOPSIG(status_);
      ::ptrace(PTRACE_SYSCALL, child_, nullptr, signal);
      ::waitpid(child_, &status_, 0);
    }
    return false;
  }
  // Lets it go with a signal; returns how it ended, as a shell says it.
  int release(int signal) {
    if (WIFSTOPPED(status_)) {
      ::ptrace(PTRACE_DETACH, child_, nullptr, signal);
      ::waitpid(child_, &status_, 0);
    }
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  }

 private:
  pid_t child_ = -1;
  int status_ = 0;
  bool allowed_ = false;
};

TEST_F(Signals, WhileAFileIsWrittenLeaveTheOldOne) {
  out.write("r.json", "old");
  const auto is_writing = [&] {
    for (const auto& entry : fs::directory_iterator(out.path()))
      if (entry.path().extension() == ".part" && fs::file_size(entry.path()) > 0) return true;
    return false;
  };
  for (const int signal : {SIGINT, SIGTERM}) {
    Traced run({"generate", "-m", folder.path(), "-p", "abab", "-n", "2", "-t", "1", "--quiet",
                "--json", results});
    if (!run.allowed()) GTEST_SKIP() << "no process may be traced here";
    ASSERT_TRUE(run.run_until(is_writing));
    EXPECT_EQ(run.release(signal), 128 + signal);
    EXPECT_EQ(file("r.json"), "old");
    EXPECT_EQ(n_left(), 0);
  }
}

}  // namespace
}  // namespace sluice::impl
