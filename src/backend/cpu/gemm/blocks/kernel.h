// Products of packed blocks (gemm/blocks/layout.h) with activations of 8 bits: one or several
// groups of eight rows of the matrix and one to four rows of activations at a time. Products of
// integers are exact; an output is a float32 sum over the blocks, in the same order in every
// kernel.
//
// Plain data alone: files for one instruction set include this.

#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace sluice::impl::cpu::gemm {

// How values of rows of activations lie.
enum class XOrder : uint8_t {
  kPlain,
  kDoubled,  // each eight come twice
  kPairs     // those of rows 2i and 2i + 1 alternate, eight at a time; a last row alone is doubled
};

// A row of activations as a block type wants it (gemm/blocks/activations.h).
struct QuantisedRow {
  const int8_t* values;   // of the row, or of its pair
  const float* scales;    // (blocks)
  const int32_t* starts;  // (scales of the weights, 4): what sums begin with, see BlockKernel
  const int32_t* sums;    // (scales of the weights), of values: q4_k, q5_k
  const float* products;  // (blocks) scale times sum: q4_1, q5_1
};

constexpr int64_t kMaxGroupX = 4, kMostStreams = 8;

struct GroupArgs {
  const std::byte* weights;  // blocks of a group, one after the other
  int64_t n_blocks;
  QuantisedRow x[kMaxGroupX];
  float* out;  // (rows of x, 8)
  int64_t out_stride;
  // From one group to the next, where several are multiplied: bytes, and numbers.
  int64_t group_stride, out_group_stride;
};
using GroupFunction = void (*)(const GroupArgs& args);

struct BlockKernel {
  const char* name;
  XOrder order;
  int64_t max_rows;  // of x in one call
  // Where sums of integers become floats, that is in blocks of 32, they begin with this. To it
  // comes the sum of values times the type's offset. `starts` repeats the result and a zero, or the
  // results of the rows of a pair.
  int32_t first;
  // Groups that are read side by side for one or two rows of x: a core draws more from memory in
  // several streams than in one.
  int64_t streams;
  // The function for a block type, `rows` rows of x, and one group or `streams` of them.
  GroupFunction (*group)(DType type, int64_t rows, int64_t groups);
};

// nullptr where this CPU or build lacks the instructions.
const BlockKernel* block_kernel_portable();
const BlockKernel* block_kernel_dotprod();  // Arm FEAT_DotProd
const BlockKernel* block_kernel_i8mm();     // Arm FEAT_I8MM
const BlockKernel* block_kernel_avx2();     // x86 AVX2, FMA, F16C
const BlockKernel* block_kernel_vnni();     // x86 AVX-512 VNNI, in vectors of 256 bits

}  // namespace sluice::impl::cpu::gemm
