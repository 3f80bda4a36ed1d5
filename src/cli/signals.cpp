#include "cli/signals.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>

#include "cli/terminal/progress.h"
#include "io/mapped_file.h"
#include "io/unfinished_files.h"

namespace sluice::impl::cli {
namespace {

std::array<char, 4096> g_kept_path{};
std::atomic<bool> g_keeps = false;  // the path is complete

// Handlers call nothing but what is safe in one: access, write, unlink, raise, _exit.

void say_part(const char* text) {
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, text, std::strlen(text));
}

// The default action is back in place and follows when the handler returns.
void end_by_signal(int signal) {
  remove_unfinished_files();
  wipe_bar();
  if (g_keeps && ::access(g_kept_path.data(), F_OK) == 0) {
    say_part("sluice: stopped; what was measured is in ");
    say_part(g_kept_path.data());
    say_part(", and the same command goes on from there\n");
  }
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

KeptWork::KeptWork(const std::filesystem::path& path) {
  const std::string& name = path.native();
  if (name.size() >= g_kept_path.size()) return;
  std::memcpy(g_kept_path.data(), name.c_str(), name.size() + 1);
  g_keeps = true;
}

KeptWork::~KeptWork() { g_keeps = false; }

void install_signal_handlers() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) handle(signal, end_by_signal, nullptr);
  handle(SIGBUS, nullptr, end_by_bus_error);
  ::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace sluice::impl::cli
