// The real program in a pseudo-terminal: what a user types and sees.

#pragma once

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <stdexcept>
#include <string>

#include "cli/run_program.h"

namespace sluice::impl::test {

class Terminal {
 public:
  // columns: of the terminal's width; 0: it does not tell.
  explicit Terminal(const Args& args, unsigned short columns = 0) {
    std::vector<std::string> words{program_path()};
    words.insert(words.end(), args.begin(), args.end());
    std::vector<std::string> lines = detail::environment();
    const std::vector<char*> argv = detail::pointers(words), envp = detail::pointers(lines);
    const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    child_ = ::forkpty(&terminal_, nullptr, nullptr, columns > 0 ? &size : nullptr);
    if (child_ < 0) throw std::runtime_error("forkpty failed");
    if (child_ == 0) {
      ::execve(argv[0], argv.data(), envp.data());
      ::_exit(127);
    }
  }
  ~Terminal() {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
    ::close(terminal_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& keys) const {
    if (::write(terminal_, keys.data(), keys.size()) != std::ssize(keys))
      throw std::runtime_error("the terminal takes no input");
  }
  // Reads until `text` has appeared after what was waited for before. False, and a failure of the
  // test, where it does not within a minute.
  bool wait_for(const std::string& text) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (;;) {
      if (const size_t at = shown_.find(text, seen_); at != std::string::npos) {
        seen_ = at + text.size();
        return true;
      }
      if (std::chrono::steady_clock::now() > end || !read_some()) break;
    }
    ADD_FAILURE() << "not shown: " << text << "\nshown so far:\n" << shown_;
    return false;
  }
  // Exit code, once the program has ended by itself.
  int wait_for_end() {
    while (read_some()) {
    }
    int status = 0;
    ::waitpid(child_, &status, 0);
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  const std::string& shown() const { return shown_; }
  pid_t child() const { return child_; }
  // Whether lines are edited, echoed and signals sent by keys, as a terminal does at first.
  bool is_as_at_first() const {
    termios modes{};
    return ::tcgetattr(terminal_, &modes) == 0 && (modes.c_lflag & ICANON) != 0 &&
           (modes.c_lflag & ECHO) != 0 && (modes.c_lflag & ISIG) != 0;
  }

 private:
  // False once nothing more comes.
  bool read_some() {
    pollfd waiting{terminal_, POLLIN, 0};
    if (::poll(&waiting, 1, 60'000) <= 0) return false;
    std::array<char, 4096> block{};
    const ssize_t n = ::read(terminal_, block.data(), block.size());
    if (n <= 0) return false;
    shown_.append(block.data(), static_cast<size_t>(n));
    return true;
  }

  int terminal_ = -1;
  pid_t child_ = -1;
  std::string shown_;
  size_t seen_ = 0;
};

}  // namespace sluice::impl::test
