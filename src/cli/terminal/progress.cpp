#include "cli/terminal/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cli/terminal/say.h"

namespace sluice::impl::cli {
namespace {

std::string clock_text(double seconds) {
  const int whole = static_cast<int>(std::lround(std::min(seconds, 359999.0)));
  return whole >= 3600 ? fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
                       : fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

ProgressBar::ProgressBar(std::string label, bool quiet)
    : label_(std::move(label)),
      active_(!quiet && isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {}

ProgressBar::~ProgressBar() {
  if (drawn_) say("\r\033[K");
}

void ProgressBar::update(double done, const std::string& note) {
  const auto now = std::chrono::steady_clock::now();
  if (!active_ || now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  drawn_ = true;
  constexpr int kWidth = 24;
  done = std::clamp(done, 0.0, 1.0);
  const double spent = std::chrono::duration<double>(now - start_).count();
  const std::string left = done > 0 ? clock_text(spent / done * (1 - done)) : "?";
  const int filled = static_cast<int>(done * kWidth);
  say("\r\033[K{} [{:#<{}}{:.<{}}] {:3.0f}%  {} left  {}", label_, "", filled, "", kWidth - filled,
      100 * done, left, note);
  std::fflush(stderr);
}

}  // namespace sluice::impl::cli
