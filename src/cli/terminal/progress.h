// Progress on stderr: a bar on a terminal, a line now and then elsewhere, nothing under --quiet.

#pragma once

#include <chrono>
#include <string>

namespace sluice::impl::cli {

class ProgressBar {
 public:
  ProgressBar(std::string label, bool quiet);
  ~ProgressBar();  // wipes the line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // What earlier runs did, 0 to 1: it does not count in the rate.
  void begin_at(double done);
  // done from 0 to 1; `note` stands behind the bar. Draws at most ten times a second, and writes a
  // line at most every kLineEvery.
  void update(double done, const std::string& note);
  // Wipes the line, so that something can be printed; the next update draws it again.
  void make_room();

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kLineEvery{30};

  std::string label_;
  bool quiet_, terminal_;
  bool drawn_ = false;
  double begun_at_ = 0;
  Clock::time_point start_, last_;
};

// One line of at most `columns` characters of ASCII: label, bar, text and note; what does not fit
// is left out, the note first. A longer one would wrap, and wiping the line would leave its
// beginning.
struct ProgressLine {
  std::string label, text, note;
  double done = 0;  // 0 to 1
};
std::string progress_line(const ProgressLine& line, size_t columns);

// Wipes a bar that is drawn. A signal handler may call it.
void wipe_bar() noexcept;

// Progress in words: "43%, 1:20 left". done and begun_at from 0 to 1.
std::string progress_text(double done, double begun_at, double seconds);

}  // namespace sluice::impl::cli
