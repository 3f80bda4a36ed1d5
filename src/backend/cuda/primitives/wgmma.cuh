// Hopper's matrix instructions, TMA and barriers, in the few forms that attention needs.
//
// A warpgroup (four warps) multiplies 64 rows at a time; warp w of it keeps rows 16 w to 16 w + 15
// of the sums, laid out as in primitives/mma.cuh. Operands in shared memory are panels of 64
// columns of bf16, 128 bytes to a row, in which TMA swaps the 16-byte parts of a row by
// its place among eight ("swizzle 128B"); a panel begins at a multiple of 1024 bytes.
//
// Barriers and bulk copies are cuda::ptx's. It has no wgmma and no setmaxnreg, and its wait for a
// barrier, a loop in C++, compiles to other code than the loop below.

#pragma once

#include <cuda.h>

#include <cstdint>
#include <cuda/ptx>

#include "backend/cuda/primitives/mma.cuh"

namespace sluice::impl::cuda {

namespace ptx = ::cuda::ptx;

// How the tensor core finds an operand: address, strides and swizzle. `stride`: bytes from eight
// rows to the next eight; `leading`: bytes from a panel to the next, of an operand whose rows, not
// its columns, are summed over (16 otherwise, where it is not looked at).
__device__ inline uint64_t operand_at(uint32_t address, uint32_t leading, uint32_t stride) {
  return static_cast<uint64_t>((address & 0x3ffffu) >> 4) |
         static_cast<uint64_t>(leading >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32 |
         uint64_t{1} << 62;
}

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
// Waits until at most kPending groups are pending.
template <int kPending>
__device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving sums while a wgmma is pending.
template <int kN>
__device__ void hold(float (&c)[kN][4]) {
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(c[n][i])::"memory");
}

#define SLUICE_FOUR(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])

// c (64 x 8 kN) = or += a (64 x 16) b (8 kN x 16, transposed), both in shared memory by rows.
__device__ inline void multiply_shared(float (&c)[8][4], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred add; setp.ne.b32 add, %34, 0; "
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, add, 1, 1, 0, 0;}\n"
      : SLUICE_FOUR(0), SLUICE_FOUR(1), SLUICE_FOUR(2), SLUICE_FOUR(3), SLUICE_FOUR(4),
        SLUICE_FOUR(5), SLUICE_FOUR(6), SLUICE_FOUR(7)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

__device__ inline void multiply_shared(float (&c)[16][4], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred add; setp.ne.b32 add, %66, 0; "
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
      "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
      "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, add, 1, 1, 0, 0;}\n"
      : SLUICE_FOUR(0), SLUICE_FOUR(1), SLUICE_FOUR(2), SLUICE_FOUR(3), SLUICE_FOUR(4),
        SLUICE_FOUR(5), SLUICE_FOUR(6), SLUICE_FOUR(7), SLUICE_FOUR(8), SLUICE_FOUR(9),
        SLUICE_FOUR(10), SLUICE_FOUR(11), SLUICE_FOUR(12), SLUICE_FOUR(13), SLUICE_FOUR(14),
        SLUICE_FOUR(15)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

__device__ inline void multiply_shared(float (&c)[32][4], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred add; setp.ne.b32 add, %130, 0; "
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
      "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
      "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, "
      "%66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "
      "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, "
      "%98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "
      "%126, %127}, "
      "%128, %129, add, 1, 1, 0, 0;}\n"
      : SLUICE_FOUR(0), SLUICE_FOUR(1), SLUICE_FOUR(2), SLUICE_FOUR(3), SLUICE_FOUR(4),
        SLUICE_FOUR(5), SLUICE_FOUR(6), SLUICE_FOUR(7), SLUICE_FOUR(8), SLUICE_FOUR(9),
        SLUICE_FOUR(10), SLUICE_FOUR(11), SLUICE_FOUR(12), SLUICE_FOUR(13), SLUICE_FOUR(14),
        SLUICE_FOUR(15), SLUICE_FOUR(16), SLUICE_FOUR(17), SLUICE_FOUR(18), SLUICE_FOUR(19),
        SLUICE_FOUR(20), SLUICE_FOUR(21), SLUICE_FOUR(22), SLUICE_FOUR(23), SLUICE_FOUR(24),
        SLUICE_FOUR(25), SLUICE_FOUR(26), SLUICE_FOUR(27), SLUICE_FOUR(28), SLUICE_FOUR(29),
        SLUICE_FOUR(30), SLUICE_FOUR(31)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

// c += a (64 x 16, in registers as in primitives/mma.cuh) b (16 x 8 kN, in shared memory by rows).
__device__ inline void multiply_registers(float (&c)[8][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.eq.b32 add, 0, 0; "
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, add, 1, 1, 1;}\n"
      : SLUICE_FOUR(0), SLUICE_FOUR(1), SLUICE_FOUR(2), SLUICE_FOUR(3), SLUICE_FOUR(4),
        SLUICE_FOUR(5), SLUICE_FOUR(6), SLUICE_FOUR(7)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ inline void multiply_registers(float (&c)[16][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.eq.b32 add, 0, 0; "
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
      "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
      "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, add, 1, 1, 1;}\n"
      : SLUICE_FOUR(0), SLUICE_FOUR(1), SLUICE_FOUR(2), SLUICE_FOUR(3), SLUICE_FOUR(4),
        SLUICE_FOUR(5), SLUICE_FOUR(6), SLUICE_FOUR(7), SLUICE_FOUR(8), SLUICE_FOUR(9),
        SLUICE_FOUR(10), SLUICE_FOUR(11), SLUICE_FOUR(12), SLUICE_FOUR(13), SLUICE_FOUR(14),
        SLUICE_FOUR(15)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef SLUICE_FOUR

// Registers are handed from warps that copy to warps that multiply.
template <int kRegisters>
__device__ void decrease_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void increase_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

// A barrier in shared memory that counts arrivals and bytes; its phases are told apart by parity.
__device__ inline void make_barrier(uint64_t* barrier, int arrivals) {
  ptx::mbarrier_init(barrier, static_cast<uint32_t>(arrivals));
}
// After all are made, before anybody uses them.
__device__ inline void publish_barriers() {
  ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
}
__device__ inline void arrive(uint64_t* barrier) { ptx::mbarrier_arrive(barrier); }
// The same for so many threads.
__device__ inline void arrive(uint64_t* barrier, int arrivals) {
  ptx::mbarrier_arrive(barrier, static_cast<uint32_t>(arrivals));
}
// Arrives once all copies that this thread has started are complete; it does not wait.
__device__ inline void arrive_when_copied(uint64_t* barrier) {
  asm volatile(
      "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(shared_address(barrier))
      : "memory");
}
__device__ inline void arrive_and_expect(uint64_t* barrier, uint32_t bytes) {
  ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier,
                                 bytes);
}
__device__ inline void wait_barrier(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{.reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// Starts copying bytes to shared memory, a multiple of 16 from a place that is one; they count at
// the barrier.
__device__ inline void copy_bytes(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, to, from, bytes, barrier);
}

// Starts copying a box of a tensor to shared memory; its bytes count at the barrier.
__device__ inline void copy_box(void* to, const CUtensorMap* map, int x, int y, int z,
                                uint64_t* barrier) {
  const int32_t at[3] = {x, y, z};
  ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to, map, at, barrier);
}
// Starts copying a box from shared memory to a tensor; what lies outside the tensor is not written.
// `from` is free after wait_for_stores of the same thread.
__device__ inline void store_box(const CUtensorMap* map, int x, int y, int z, const void* from) {
  const int32_t at[3] = {x, y, z};
  ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, map, at, from);
}
__device__ inline void wait_for_stores() {
  ptx::cp_async_bulk_commit_group();
  ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>{});
}

}  // namespace sluice::impl::cuda
