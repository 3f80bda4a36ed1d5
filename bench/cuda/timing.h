// Times work on the device by its own clock, and makes memory worth reading.

#pragma once

#include <functional>

#include "backend/cuda/linear/linear.h"
#include "stopwatch.h"

namespace sluice::impl::bench {

// The time of run(round), after a warm-up. Short runs are timed many at once, so that launch
// latency is not measured.
Timing time_runs(cuda::Context& context, const std::function<void(int)>& run, int repeats = 25);
// Of one of `n` runs that are recorded once and started together: nothing waits for the host.
Timing time_recorded(cuda::Context& context, int n, const std::function<void(int)>& run);

// Random numbers of either sign; zeros would run faster than real data.
cuda::DeviceMatrix random_matrix(const std::shared_ptr<cuda::Context>& context, DType dtype,
                                 int64_t n_rows, int64_t width, uint32_t seed);
// TB/s of a large copy, read and written, and of reading alone.
double copy_bandwidth(const std::shared_ptr<cuda::Context>& context);
double read_bandwidth(const std::shared_ptr<cuda::Context>& context);

// gates.cpp and gsi.cpp: what decoding one token takes by gates.
void bench_gates(const std::shared_ptr<cuda::Context>& context);
void bench_graded(const std::shared_ptr<cuda::Context>& context);
void bench_gsi(const std::shared_ptr<cuda::Context>& context);

}  // namespace sluice::impl::bench
