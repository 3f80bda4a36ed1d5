// Times work on the device by its own clock, and makes memory worth reading.

#pragma once

#include <functional>

#include "backend/backend.h"
#include "backend/cuda/linear/linear.h"
#include "cuda/stopwatch.h"

namespace sluice::impl::bench {

constexpr int kUsualRounds = 25;

// The time of run(round) in `rounds` samples, after a warm-up. Short runs are timed many at once,
// so that launch latency is not measured.
Timing time_runs(cuda::Context& context, int rounds, const std::function<void(int)>& run);
// Of one of `n` runs that are recorded once and started together: nothing waits for the host.
Timing time_recorded(cuda::Context& context, int rounds, int n,
                     const std::function<void(int)>& run);
// By the host's clock, with the device idle before and after, after a warm-up.
Timing time_waited(Backend& backend, int rounds, const std::function<void()>& run);

// Random numbers of either sign; zeros would run faster than real data.
cuda::linear::DeviceMatrix random_matrix(const std::shared_ptr<cuda::Context>& context, DType dtype,
                                         int64_t n_rows, int64_t width, uint32_t seed);
// TB/s of a large copy, read and written, and of reading alone.
double copy_bandwidth(const std::shared_ptr<cuda::Context>& context);
double read_bandwidth(const std::shared_ptr<cuda::Context>& context);

}  // namespace sluice::impl::bench
