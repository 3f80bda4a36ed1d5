// The exception types, which are public, and the check for promises between our own functions.

#pragma once

#include "sluice/error.h"

namespace sluice {

[[noreturn]] void fail_check(const char* expression, const char* file, int line);

}  // namespace sluice

#define SLUICE_CHECK(expression)                                              \
  do {                                                                        \
    if (!(expression)) ::sluice::fail_check(#expression, __FILE__, __LINE__); \
  } while (false)
