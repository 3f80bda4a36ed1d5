// The one exception type of the library, and the check for promises between our own functions.

#pragma once

#include <stdexcept>
#include <string>

namespace sluice {

// Anything a user or a file can cause. what() is one line; hint() says what to try, or is empty.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, std::string hint = {})
      : std::runtime_error(message), hint_(std::move(hint)) {}
  const std::string& hint() const { return hint_; }

 private:
  std::string hint_;
};

// A broken promise inside the program: a bug, not bad input.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void fail_check(const char* expression, const char* file, int line);

}  // namespace sluice

#define SLUICE_CHECK(expression)                                              \
  do {                                                                        \
    if (!(expression)) ::sluice::fail_check(#expression, __FILE__, __LINE__); \
  } while (false)
