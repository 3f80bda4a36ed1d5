#include "cli/terminal/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>

#include "cli/terminal/say.h"

namespace sluice::impl::cli {
namespace {

constexpr std::string_view kWipe = "\r\033[K";

std::atomic<bool> g_drawn = false;  // a bar, on stderr

// Those of the terminal; many where it does not tell.
size_t columns_of_stderr() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 1000;
  return size.ws_col;
}

std::string clock_text(double seconds) {
  const int whole = static_cast<int>(std::lround(std::min(seconds, 359999.0)));
  return whole >= 3600 ? fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
                       : fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

std::string progress_text(double done, double begun_at, double seconds) {
  const double own = done - begun_at;
  const std::string left = own > 0 ? clock_text(seconds / own * (1 - done)) : "?";
  // Never 100% before the end.
  return fmt::format("{:3.0f}%, {} left", std::floor(100 * done), left);
}

ProgressBar::ProgressBar(std::string label, bool quiet)
    : label_(std::move(label)),
      quiet_(quiet),
      terminal_(isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      last_(start_) {}

ProgressBar::~ProgressBar() { make_room(); }

void ProgressBar::begin_at(double done) {
  begun_at_ = std::clamp(done, 0.0, 1.0);
  start_ = Clock::now();
}

void ProgressBar::make_room() {
  if (!drawn_) return;
  say("{}", kWipe);
  std::fflush(stderr);
  drawn_ = g_drawn = false;
  last_ = {};
}

void ProgressBar::update(double done, const std::string& note) {
  const auto now = Clock::now();
  if (quiet_ || now - last_ < (terminal_ ? Clock::duration(std::chrono::milliseconds(100))
                                         : Clock::duration(kLineEvery)))
    return;
  last_ = now;
  done = std::clamp(done, 0.0, 1.0);
  const double spent = std::chrono::duration<double>(now - start_).count();
  const std::string text = progress_text(done, begun_at_, spent);
  if (!terminal_) return say("{}: {}{}{}\n", label_, text, note.empty() ? "" : ", ", note);
  g_drawn = true;  // before it is: a signal may come between
  // In the last column some terminals wrap at once.
  say("{}{}", kWipe, progress_line({label_, text, note, done}, columns_of_stderr() - 1));
  std::fflush(stderr);
  drawn_ = true;
}

std::string progress_line(const ProgressLine& line, size_t columns) {
  constexpr int kWidth = 24;
  const int filled = static_cast<int>(line.done * kWidth);
  const std::string short_line = fmt::format("{} {}", line.label, line.text);
  const std::string bar =
      fmt::format("{} [{:#<{}}{:.<{}}] {}", line.label, "", filled, "", kWidth - filled, line.text);
  for (const std::string& choice : {bar + "  " + line.note, bar, short_line, line.text})
    if (choice.size() <= columns) return choice;
  return line.text.substr(0, columns);
}

void wipe_bar() noexcept {
  if (!g_drawn) return;
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, kWipe.data(), kWipe.size());
}

}  // namespace sluice::impl::cli
