// A progress bar on a terminal's stderr; silent in a pipe and under --quiet.

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

  // done from 0 to 1; `note` stands behind the bar. Draws at most ten times a second.
  void update(double done, const std::string& note);

 private:
  std::string label_;
  bool active_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

}  // namespace sluice::impl::cli
