// What the blocks of a gate send each other about a row, without a barrier. A message holds the
// row's number, so that a reader sees whether it has arrived. It is written and read by one access
// of 16 bytes, and no other memory has to be visible with it, so no fence is needed.

#pragma once

#include "backend/cuda/subspace/kernels.h"

namespace sluice::impl::cuda::subspace {

__device__ inline void send_message(GateMessage* to, const GateMessage& message) {
  const uint64_t low = uint64_t{message.small} << 32 | message.row;
  asm volatile(
      "{\n"
      ".reg .b128 all;\n"
      "mov.b128 all, {%1, %2};\n"
      "st.relaxed.gpu.global.b128 [%0], all;\n"
      "}\n" ::"l"(to),
      "l"(low), "l"(message.large)
      : "memory");
}

__device__ inline GateMessage wait_for_message(const GateMessage* from, uint32_t row) {
  uint64_t low, high;
  do {
    asm volatile(
        "{\n"
        ".reg .b128 all;\n"
        "ld.relaxed.gpu.global.b128 all, [%2];\n"
        "mov.b128 {%0, %1}, all;\n"
        "}\n"
        : "=l"(low), "=l"(high)
        : "l"(from)
        : "memory");
  } while (static_cast<uint32_t>(low) != row);
  return {.row = row, .small = static_cast<uint32_t>(low >> 32), .large = high};
}

// Who says what: a pair of directions to a block and round, and parts of ||x||^2 from the last
// of the blocks that multiply on backwards. The recorder sends one where the path is not
// clear.
//
// Every block that multiplies says something of every row, and not before all its threads have used
// what the row begins with, ahead of a barrier: so it is loaded, and the recorder, which receives
// all, may write what the next row begins with. (Messages order no other memory access; the use
// does.)
struct Exchange {
  GateMessage* messages;  // (gate_messages)
  int n_pairs, n_norms;
  uint32_t row;

  __device__ void tell(int index, uint32_t small, uint64_t large) const {
    send_message(messages + index, {.row = row, .small = small, .large = large});
  }
  __device__ GateMessage receive(int index) const {
    return wait_for_message(messages + index, row);
  }
  __device__ int norm(int part) const { return n_pairs + part; }
  __device__ int path() const { return n_pairs + n_norms; }
};

}  // namespace sluice::impl::cuda::subspace
