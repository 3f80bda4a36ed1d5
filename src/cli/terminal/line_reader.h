// Lines of standard input, and Ctrl-C as an event instead of the end of the program.

#pragma once

#include <string>

namespace sluice::impl::cli {

// While one exists, SIGINT sets a mark, and wakes a LineReader that waits or is about to, whichever
// thread the signal comes to. One at a time.
class InterruptMark {
 public:
  InterruptMark();
  ~InterruptMark();  // SIGINT is as it was
  InterruptMark(const InterruptMark&) = delete;
  InterruptMark& operator=(const InterruptMark&) = delete;

  static bool is_set();
  static void clear();
};

class LineReader {
 public:
  enum class Event { kLine, kEnd, kInterrupted };

  // Reads a line, without its end; the last one may have none. A line that is not complete when
  // SIGINT comes is dropped. Throws Error for a line of more than 64 MiB.
  Event read(std::string& line);

 private:
  std::string pending_;  // read, and not yet part of a line
  bool ended_ = false;
};

}  // namespace sluice::impl::cli
