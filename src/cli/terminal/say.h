// Messages on stderr: everything that is not a result.

#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace sluice::impl::cli {

// A closed stderr is no reason to stop.
template <typename... T>
void say(fmt::format_string<T...> format, T&&... args) {
  std::fputs(fmt::format(format, std::forward<T>(args)...).c_str(), stderr);
}

}  // namespace sluice::impl::cli
