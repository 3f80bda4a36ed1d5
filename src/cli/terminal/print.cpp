#include "cli/terminal/print.h"

#include <csignal>
#include <cstdio>

#include "core/error.h"

namespace sluice::impl::cli {
namespace {

bool g_outlives_lost_output = false;

}  // namespace

void print_text(std::string_view text) {
  const size_t n = std::fwrite(text.data(), 1, text.size(), stdout);
  if (n < text.size() && !g_outlives_lost_output) throw Error(kLostOutput, kLostOutputHint);
}

void outlive_lost_output() {
  g_outlives_lost_output = true;
  std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace sluice::impl::cli
