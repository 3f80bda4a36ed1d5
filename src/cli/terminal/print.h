// Results on standard output.

#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace sluice::impl::cli {

inline constexpr const char* kLostOutput = "standard output cannot be written";
inline constexpr const char* kLostOutputHint = "is it closed, or the disk full?";

// Throws Error where standard output cannot be written, unless outlive_lost_output was called.
void print_text(std::string_view text);

template <typename... T>
void print(fmt::format_string<T...> format, T&&... args) {
  print_text(fmt::format(format, std::forward<T>(args)...));
}

// For a run that writes files, too: it goes on when nobody reads what it prints any more
// (`| head`), and main says at the end that output was lost. Other runs end by SIGPIPE.
void outlive_lost_output();

}  // namespace sluice::impl::cli
