#include "cli/signals.h"

#include <signal.h>
#include <unistd.h>

#include <cstring>

#include "io/mapped_file.h"
#include "io/unfinished_files.h"

namespace sluice::impl::cli {
namespace {

// Handlers call nothing but what is safe in one: write, unlink, raise, _exit.

void say_part(const char* text) {
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, text, std::strlen(text));
}

// The default action is back in place and follows when the handler returns.
void end_by_signal(int signal) {
  remove_unfinished_files();
  ::raise(signal);
}

void end_by_bus_error(int signal, siginfo_t* info, void*) {
  const char* path = mapped_path_at(info->si_addr);
  if (path == nullptr) return end_by_signal(signal);
  remove_unfinished_files();
  say_part("sluice: ");
  say_part(path);
  say_part(": became shorter, or its disk failed, while it was read (hint: is it being written? ");
  say_part("run again when it is complete)\n");
  ::_exit(1);
}

void handle(int signal, void (*plain)(int), void (*with_info)(int, siginfo_t*, void*)) {
  struct sigaction before {
  }, action{};
  ::sigaction(signal, nullptr, &before);
  // nohup, and shells in the background, have signals ignored.
  if ((before.sa_flags & SA_SIGINFO) == 0 && before.sa_handler == SIG_IGN) return;
  sigemptyset(&action.sa_mask);
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  if (plain != nullptr) {
    action.sa_handler = plain;
  } else {
    action.sa_flags |= SA_SIGINFO;
    action.sa_sigaction = with_info;
  }
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void install_signal_handlers() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) handle(signal, end_by_signal, nullptr);
  handle(SIGBUS, nullptr, end_by_bus_error);
  ::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace sluice::impl::cli
