#include "core/threads.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <latch>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "core/error.h"

namespace sluice::impl {
namespace {

std::atomic<int> g_threads = 0;  // models may be used in several threads

// The first exception of a parallel region, carried out of it.
class FirstException {
 public:
  template <typename F>
  void guard(F&& f) noexcept {
    try {
      f();
    } catch (...) {
      if (!taken_.exchange(true)) exception_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (exception_) std::rethrow_exception(exception_);
  }

 private:
  std::atomic<bool> taken_{false};
  std::exception_ptr exception_;
};

// Starts as many threads as a team has and ends them. GNU's OpenMP ends the process where a thread
// cannot be started.
void check_startable(int team) {
  std::latch all_started(1);
  std::vector<std::thread> others;
  std::string reason;
  try {
    for (int i = 1; i < team; ++i) others.emplace_back([&] { all_started.wait(); });
  } catch (const std::system_error& error) {
    reason = error.code().message();
  }
  all_started.count_down();
  for (std::thread& other : others) other.join();
  if (!reason.empty())
    throw Error(std::to_string(team) + " threads cannot be started: " + reason,
                "take fewer (-t), or raise the limits on processes and memory (ulimit -u, -v)");
}

}  // namespace

void set_threads(int count) {
  const int wanted = count > 0 ? count : omp_get_num_procs();
  if (wanted > g_threads) check_startable(wanted);
  g_threads = wanted;
  omp_set_num_threads(wanted);
}

int threads() {
  if (g_threads == 0) set_threads(0);
  return g_threads;
}

// Every region has the whole team, even where some of it has nothing to do: GNU's OpenMP ends the
// threads a smaller team leaves over and starts them anew for the next larger one.

void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (n <= 0) return;
  const int64_t parts = std::min<int64_t>(threads(), n / std::max<int64_t>(grain, 1));
  if (parts <= 1 || omp_in_parallel()) return body(0, n);
  FirstException first;
#pragma omp parallel for num_threads(threads()) schedule(static, 1)
  for (int64_t part = 0; part < parts; ++part)
    first.guard([&] { body(n * part / parts, n * (part + 1) / parts); });
  first.rethrow();
}

void parallel_each(int64_t n, const std::function<void(int64_t)>& body) {
  const int64_t parts = std::min<int64_t>(threads(), n);
  FirstException first;
  if (parts <= 1 || omp_in_parallel()) {
    for (int64_t i = 0; i < n; ++i) body(i);
    return;
  }
#pragma omp parallel for num_threads(threads()) schedule(dynamic, 1)
  for (int64_t i = 0; i < n; ++i) first.guard([&] { body(i); });
  first.rethrow();
}

}  // namespace sluice::impl
