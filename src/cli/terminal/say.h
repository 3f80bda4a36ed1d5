// Messages on stderr: everything that is not a result.

#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <utility>

namespace sluice::impl::cli {

// Of several processes that work together one speaks.
inline std::atomic<bool> g_says_nothing = false;

// A closed stderr is no reason to stop.
template <typename... T>
void say(fmt::format_string<T...> format, T&&... args) {
  if (g_says_nothing) return;
  std::fputs(fmt::format(format, std::forward<T>(args)...).c_str(), stderr);
}

}  // namespace sluice::impl::cli
