// How the public functions refuse an argument.

#pragma once

#include "sluice/error.h"

namespace sluice::impl::api {

inline void check(bool ok, const char* message, const char* hint) {
  if (!ok) throw Error(message, hint);
}

}  // namespace sluice::impl::api
