// What functions of the library throw.

#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "sluice/export.h"

namespace sluice {

// Anything that a caller or a file can cause: a file that is missing or damaged, an option out of
// range, a machine without the device asked for. what() is one line without a full stop; hint() is
// one line that says what to try, or is empty.
class SLUICE_API Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, std::string hint = {})
      : std::runtime_error(message), hint_(std::move(hint)) {}
  const std::string& hint() const { return hint_; }

 private:
  std::string hint_;
};

// A broken promise inside the library: a bug, not bad input. Please report it.
class SLUICE_API InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

}  // namespace sluice
