// Data parallelism by OpenMP. The matrix library uses its thread pool too, and two pools on one
// machine would oversubscribe the cores.

#pragma once

#include <cstdint>
#include <functional>

namespace sluice::impl {

// Threads used from now on by every parallel loop; 0 means one per processor available. Throws
// Error where so many cannot be started.
void set_threads(int count);
int threads();

// Calls body(begin, end) on disjoint ranges that cover [0, n), each of at least `grain` indices
// where n allows. Runs in place when one range is enough. An exception in a body is rethrown here.
void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

// Like parallel_for with dynamic hand-out, for items of uneven cost: body(index).
void parallel_each(int64_t n, const std::function<void(int64_t)>& body);

}  // namespace sluice::impl
