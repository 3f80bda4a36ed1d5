#include "cli/terminal/line_reader.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "core/error.h"

namespace sluice::impl::cli {
namespace {

constexpr size_t kMostLineBytes = size_t{64} << 20;

volatile sig_atomic_t interrupted = 0;
struct sigaction before {};
// The handler writes a byte, so that a signal before poll() is not missed.
std::array<int, 2> wakes = {-1, -1};

void mark(int) {
  const int error = errno;
  interrupted = 1;
  [[maybe_unused]] const ssize_t n = ::write(wakes[1], "", 1);  // a full pipe wakes as well
  errno = error;
}

// Whether input came; false: SIGINT did.
bool wait_for_input() {
  std::array<pollfd, 2> waiting{};  // poll passes over negative descriptors
  waiting[0] = {STDIN_FILENO, POLLIN, 0};
  waiting[1] = {wakes[0], POLLIN, 0};
  while (::poll(waiting.data(), waiting.size(), -1) < 0)
    if (errno != EINTR) return true;  // read() says what is wrong
  return waiting[1].revents == 0;
}

}  // namespace

InterruptMark::InterruptMark() {
  if (::pipe2(wakes.data(), O_CLOEXEC | O_NONBLOCK) != 0)
    throw Error("no pipe can be made", "are too many files open?");
  clear();
  struct sigaction action {};
  action.sa_handler = mark;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &before);
}

InterruptMark::~InterruptMark() {
  sigaction(SIGINT, &before, nullptr);
  for (int& end : wakes) ::close(std::exchange(end, -1));
}

bool InterruptMark::is_set() { return interrupted != 0; }

void InterruptMark::clear() {
  std::array<char, 64> bytes{};
  while (wakes[0] >= 0 && ::read(wakes[0], bytes.data(), bytes.size()) > 0) {
  }
  interrupted = 0;
}

LineReader::Event LineReader::read(std::string& line) {
  std::array<char, 4096> block{};
  for (;;) {
    if (const size_t end = pending_.find('\n'); end != std::string::npos) {
      line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return Event::kLine;
    }
    if (ended_) {
      line = std::move(pending_);
      pending_.clear();
      return line.empty() ? Event::kEnd : Event::kLine;
    }
    if (!wait_for_input()) {
      pending_.clear();
      return Event::kInterrupted;
    }
    const ssize_t n = ::read(STDIN_FILENO, block.data(), block.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      ended_ = true;
      continue;
    }
    pending_.append(block.data(), static_cast<size_t>(n));
    if (pending_.size() > kMostLineBytes)
      throw Error("a line of standard input is longer than 64 MiB", "send shorter messages");
  }
}

}  // namespace sluice::impl::cli
