// Products of packed blocks (gemm/blocks/layout.h) with activations of 8 bits: one or two groups of
// eight rows of the matrix and one to four rows of activations at a time. Products of integers are
// exact; an output is a float32 sum over the blocks, in the same order in every kernel.
//
// Plain data alone: files for one instruction set include this.

#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace sluice::impl::cpu::gemm {

// A row of activations as a block type wants it (gemm/blocks/activations.h).
struct QuantisedRow {
  const int8_t* values;   // of the row; where rows go by two, of its pair
  const float* scales;    // (blocks)
  const int32_t* sums;    // (scales of the weights), sums of values times the type's offset, if any
  const float* products;  // (blocks) scale times sum: q4_1, q5_1
};

constexpr int64_t kMaxGroupX = 4;

struct GroupArgs {
  const std::byte* weights;  // blocks of a group, one after the other
  int64_t n_blocks;
  QuantisedRow x[kMaxGroupX];
  float* out;  // (rows of x, 8)
  int64_t out_stride;
  // To the second group, where two are multiplied: bytes, and numbers.
  int64_t group_stride, out_group_stride;
};
using GroupFunction = void (*)(const GroupArgs& args);

struct BlockKernel {
  const char* name;
  bool pairs;        // values of rows 2i and 2i + 1 alternate, eight at a time
  int64_t max_rows;  // of x in one call
  // The function for a block type, `rows` rows of x, and one group or two.
  GroupFunction (*group)(DType type, int64_t rows, int64_t groups);
};

// nullptr where this CPU or build lacks the instructions.
const BlockKernel* block_kernel_portable();
const BlockKernel* block_kernel_dotprod();  // Arm FEAT_DotProd
const BlockKernel* block_kernel_i8mm();     // Arm FEAT_I8MM
const BlockKernel* block_kernel_avx2();     // x86 AVX2, FMA, F16C
const BlockKernel* block_kernel_vnni();     // x86 AVX-512 VNNI, in vectors of 256 bits

}  // namespace sluice::impl::cpu::gemm
