#include "cuda/memory.h"

#include "backend/cuda/runtime/device.h"

namespace sluice::impl::bench {

PoolMemory pool_memory() {
  cudaMemPool_t pool = nullptr;
  uint64_t used = 0, held = 0, none = 0;
  cuda::check(cudaDeviceGetDefaultMemPool(&pool, 0), "memory pool");
  cuda::check(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &used), "memory pool");
  cuda::check(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &held),
              "memory pool");
  cuda::check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &none), "memory pool");
  return {static_cast<double>(used), static_cast<double>(held)};
}

}  // namespace sluice::impl::bench
