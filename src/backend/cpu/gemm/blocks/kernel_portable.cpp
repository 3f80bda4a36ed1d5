// Blocks in vectors of 16 bytes, which the compiler makes of what the CPU has: for CPUs without the
// instructions of the other files. GCC 12 vectorises plain loops over arrays only at -O3, in a
// minute, to code of half the speed.

#include <cstring>
#include <type_traits>

#include "backend/cpu/gemm/blocks/kernel.h"
#include "backend/cpu/gemm/blocks/layout.h"

namespace sluice::impl::cpu::gemm {
namespace {

#include "backend/cpu/gemm/blocks/group-inl.h"

using Byte8 = uint8_t __attribute__((vector_size(8)));
using Byte16 = uint8_t __attribute__((vector_size(16)));
using Char8 = int8_t __attribute__((vector_size(8)));
using Short8 = int16_t __attribute__((vector_size(16)));
using Int4 = int32_t __attribute__((vector_size(16)));
using Float4 = float __attribute__((vector_size(16)));

struct PlainVectors {
  static constexpr int kBytes = 16, kVectors = 4, kXRows = 1, kXBytes = 8;
  static constexpr int64_t kAhead = 0, kLargeAhead = 0;
  using Bytes = Byte16;
  // Two rows of the matrix, four partial sums each.
  struct Ints {
    Int4 row[2];
  };
  struct Rows {
    Int4 half[2];
  };
  struct Floats {
    Float4 half[2];
  };

  template <typename Vector>
  static Vector read(const void* p) {
    Vector x;
    std::memcpy(&x, p, sizeof(x));
    return x;
  }

  static Bytes load(const uint8_t* p) { return read<Bytes>(p); }
  static Bytes low_nibbles(const Bytes& x) { return x & 0xf; }
  static Bytes high_nibbles(const Bytes& x) { return x >> 4; }
  template <int kNibble, int kFrom, int kMask>
  static Bytes join(const Bytes& both, const Bytes& bits) {
    const Bytes nibbles = kNibble == 0 ? both & 0xf : both >> 4;
    // Bits 4 and 5 come from kFrom and kFrom + 1.
    const Bytes moved = kFrom < 4 ? bits << (4 - kFrom) : bits >> (kFrom - 4);
    return nibbles | (moved & uint8_t{kMask});
  }

  static Short8 load_x(const int8_t* p) { return __builtin_convertvector(read<Char8>(p), Short8); }
  // Products of a weight and an activation fit 16 bits: 127 * 127 at most.
  template <bool kSigned>
  static Ints dot(Ints sums, const Bytes& w, const Short8& x) {
    const Byte8 halves[] = {__builtin_shufflevector(w, w, 0, 1, 2, 3, 4, 5, 6, 7),
                            __builtin_shufflevector(w, w, 8, 9, 10, 11, 12, 13, 14, 15)};
    for (int row = 0; row < 2; ++row) {
      Short8 products = x;
      if constexpr (kSigned)
        products *= __builtin_convertvector(reinterpret_cast<Char8>(halves[row]), Short8);
      else
        products *= __builtin_convertvector(halves[row], Short8);
      // The lower and the upper half of each pair of products, as 32 bits.
      const auto pairs = reinterpret_cast<Int4>(products);
      sums.row[row] += (pairs << 16 >> 16) + (pairs >> 16);
    }
    return sums;
  }
  // {sum of a, of b, of c, of d}
  static Int4 four_sums(const Int4& a, const Int4& b, const Int4& c, const Int4& d) {
    const Int4 ab =
        __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const Int4 cd =
        __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
    return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) +
           __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
  }
  static void add_partials(const Ints (&sums)[kVectors], Rows* rows) {
    *rows = {{four_sums(sums[0].row[0], sums[0].row[1], sums[1].row[0], sums[1].row[1]),
              four_sums(sums[2].row[0], sums[2].row[1], sums[3].row[0], sums[3].row[1])}};
  }

  static Ints no_ints() { return {}; }
  static Ints start(const int32_t* p) { return {{Int4{*p}, Int4{*p}}}; }
  static Rows no_rows() { return {}; }
  static Floats no_floats() { return {}; }
  static Floats repeat(float x) { return {{Float4{} + x, Float4{} + x}}; }
  static Rows add_multiple(const uint8_t* x, int32_t by, const Rows& c) {
    const Rows wide = widen<false>(x);
    return {{wide.half[0] * by + c.half[0], wide.half[1] * by + c.half[1]}};
  }
  static Rows multiply_add(const Rows& a, const Rows& b, const Rows& c) {
    return {{a.half[0] * b.half[0] + c.half[0], a.half[1] * b.half[1] + c.half[1]}};
  }
  template <bool kSigned>
  static Rows widen(const uint8_t* p) {
    using Eight = std::conditional_t<kSigned, Char8, Byte8>;
    const Short8 x = __builtin_convertvector(read<Eight>(p), Short8);
    const Short8 none = {};
    // Each number in the upper half of 32 bits, then moved down with its sign.
    return {
        {reinterpret_cast<Int4>(__builtin_shufflevector(none, x, 0, 8, 1, 9, 2, 10, 3, 11)) >> 16,
         reinterpret_cast<Int4>(__builtin_shufflevector(none, x, 4, 12, 5, 13, 6, 14, 7, 15)) >>
             16}};
  }
  static Floats sums_to_floats(const Rows& x) { return to_floats(x); }
  static Floats to_floats(const Rows& x) {
    return {
        {__builtin_convertvector(x.half[0], Float4), __builtin_convertvector(x.half[1], Float4)}};
  }
  static Floats scaled(const Floats& x, float by) { return {{x.half[0] * by, x.half[1] * by}}; }
  static Floats fma(const Floats& a, const Floats& b, const Floats& c) {
    return {{a.half[0] * b.half[0] + c.half[0], a.half[1] * b.half[1] + c.half[1]}};
  }
  static Floats load_halves(const uint8_t* p) {
    uint16_t bits[8];
    std::memcpy(bits, p, sizeof(bits));
    float x[8];
    for (int i = 0; i < 8; ++i) x[i] = half_to_float(bits[i]);
    return read<Floats>(x);
  }
  static void store(const Floats& x, float* to) { std::memcpy(to, &x, sizeof(x)); }
};

GroupFunction group(DType type, int64_t, int64_t groups) {
  return groups == 2 ? group_function_of<PlainVectors, 1, 2>(type)
                     : group_function_of<PlainVectors, 1, 1>(type);
}

}  // namespace

const BlockKernel* block_kernel_portable() {
  static const BlockKernel kernel = {"plain loops over blocks", XOrder::kPlain, 1, 0, 2, group};
  return &kernel;
}

}  // namespace sluice::impl::cpu::gemm
