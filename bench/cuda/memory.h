// Memory of the device's pool.

#pragma once

namespace sluice::impl::bench {

// Bytes: what was in use at most since the last call, and what the pool holds.
struct PoolMemory {
  double used, held;
};
PoolMemory pool_memory();

}  // namespace sluice::impl::bench
