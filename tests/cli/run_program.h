// Runs the real program, without a shell, and tells what came out.

#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <ostream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "sanitized.h"

namespace sluice::impl::test {

// The program is in the folder of its tests.
inline const std::string& program_path() {
  static const std::string path =
      (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "sluice").string();
  return path;
}

using Args = std::vector<std::string>;

struct RunResult {
  Args args;
  int code = -1;  // exit code; 128 + the signal's number when one ended it, as a shell says it
  bool timed_out = false;
  std::string out, err;
  int64_t peak_bytes = 0;  // resident
};

inline std::ostream& operator<<(std::ostream& stream, const RunResult& result) {
  stream << "sluice";
  for (const std::string& arg : result.args) stream << " '" << arg << "'";
  stream << "\nexit code " << result.code << (result.timed_out ? ", timed out" : "");
  constexpr size_t kShown = 4000;
  return stream << "\nstdout: " << result.out.substr(0, kShown)
                << "\nstderr: " << result.err.substr(0, kShown);
}

namespace detail {

class Pipe {
 public:
  Pipe() {
    if (::pipe2(ends_.data(), O_CLOEXEC) != 0)
      throw std::system_error(errno, std::generic_category(), "pipe2");
  }
  ~Pipe() {
    close(0);
    close(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  int read_end() const { return ends_[0]; }
  int write_end() const { return ends_[1]; }
  void close(size_t end) {
    if (ends_[end] >= 0) ::close(ends_[end]);
    ends_[end] = -1;
  }

 private:
  std::array<int, 2> ends_{-1, -1};
};

// Ours; under a sanitizer without the search for leaks, which takes 4 s at the end of every process
// (measured, GCC 12 on Arm) whatever the program did. A caller's own ASAN_OPTIONS has the last
// word.
inline std::vector<std::string> environment() {
  std::vector<std::string> lines;
  std::string options = "ASAN_OPTIONS=detect_leaks=0";
  for (char** line = environ; *line != nullptr; ++line) {
    const std::string text = *line;
    if (text.starts_with("ASAN_OPTIONS="))
      options += ":" + text.substr(text.find('=') + 1);
    else
      lines.push_back(text);
  }
  lines.push_back(options);
  return lines;
}

inline std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> list;
  for (std::string& word : words) list.push_back(word.data());
  list.push_back(nullptr);
  return list;
}

inline pid_t start_program(const Args& args, const Pipe& out, const Pipe& err) {
  std::vector<std::string> words{program_path()};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<std::string> lines = environment();
  const std::vector<char*> argv = pointers(words), envp = pointers(lines);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.write_end(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.write_end(), STDERR_FILENO);
  pid_t child = -1;
  const int error =
      ::posix_spawn(&child, program_path().c_str(), &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::system_error(error, std::generic_category(), program_path());
  return child;
}

// Reads both pipes until the child closes them; false when the time is over first.
inline bool read_until_closed(Pipe& out, Pipe& err, std::chrono::seconds limit, RunResult& result) {
  const auto end = std::chrono::steady_clock::now() + limit;
  std::array<Pipe*, 2> pipes{&out, &err};
  const std::array<std::string*, 2> texts{&result.out, &result.err};
  std::array<char, 65536> block{};
  while (out.read_end() >= 0 || err.read_end() >= 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    std::array<pollfd, 2> waiting{};  // poll passes over negative descriptors
    for (size_t i = 0; i < 2; ++i) waiting[i] = {pipes[i]->read_end(), POLLIN, 0};
    if (::poll(waiting.data(), waiting.size(), static_cast<int>(left.count())) < 0) {
      if (errno == EINTR) continue;
      throw std::system_error(errno, std::generic_category(), "poll");
    }
    for (size_t i = 0; i < 2; ++i) {
      if (waiting[i].revents == 0) continue;
      const ssize_t n = ::read(waiting[i].fd, block.data(), block.size());
      if (n > 0)
        texts[i]->append(block.data(), static_cast<size_t>(n));
      else if (n == 0 || errno != EINTR)
        pipes[i]->close(0);
    }
  }
  return true;
}

}  // namespace detail

inline RunResult run_program(const Args& args,
                             std::chrono::seconds limit = std::chrono::seconds(120)) {
  RunResult result;
  result.args = args;
  detail::Pipe out, err;
  const pid_t child = detail::start_program(args, out, err);
  out.close(1);
  err.close(1);
  result.timed_out = !detail::read_until_closed(out, err, limit, result);
  if (result.timed_out) ::kill(child, SIGKILL);
  int status = 0;
  rusage usage{};
  while (::wait4(child, &status, 0, &usage) < 0)
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "wait4");
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.peak_bytes = int64_t{usage.ru_maxrss} * 1024;  // Linux counts KiB
  return result;
}

// Runs what must succeed without a word about memory or undefined behaviour.
inline RunResult run_ok(const Args& args, std::chrono::seconds limit = std::chrono::seconds(120)) {
  RunResult result = run_program(args, limit);
  EXPECT_EQ(result.code, 0) << result;
  EXPECT_EQ(result.err.find("Sanitizer"), std::string::npos) << result;
  EXPECT_EQ(result.err.find("runtime error"), std::string::npos) << result;
  return result;
}

inline Args joined(Args args, const Args& more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

inline void expect_all_in(const std::vector<std::string>& fragments, const RunResult& result) {
  for (const std::string& fragment : fragments)
    EXPECT_NE(result.out.find(fragment), std::string::npos) << "expected: " << fragment << "\n"
                                                            << result;
}

inline size_t count_of(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
  return n;
}

}  // namespace sluice::impl::test
