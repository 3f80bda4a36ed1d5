// Tiles of blocks (gemm/blocks/tiles.h) on AVX-512 for bytes and 16-bit numbers, where a tile of
// AVX2 waits for the decoder: the same instructions on two groups at once. Built with AVX-512 and
// called only where the CPU has it, so this file shares no inline function with the rest.

#include <utility>

#include "backend/cpu/gemm/blocks/layout.h"
#include "backend/cpu/gemm/blocks/tiles.h"

#if defined(__x86_64__) && defined(__AVX512F__) && defined(__AVX512BW__) && \
    defined(__AVX512DQ__) && defined(__FMA__) && defined(__F16C__)

#include <immintrin.h>

namespace sluice::impl::cpu::gemm {
namespace {

#include "backend/cpu/gemm/blocks/ops_x86-inl.h"

constexpr int64_t kPanelGroups = 2;
constexpr int kMostBits = 5;
constexpr bool kMinima = true;

#include "backend/cpu/gemm/blocks/unpack_x86-inl.h"
// After it:
#include "backend/cpu/gemm/blocks/chunk_avx512-inl.h"
#include "backend/cpu/gemm/blocks/tiles_x86-inl.h"
#include "backend/cpu/gemm/blocks/unpack_avx512-inl.h"

struct Avx512Tile {
  using Ints = __m512i;
  using Floats = __m512;
  static Ints load(const int8_t* p) { return _mm512_loadu_si512(p); }
  static Floats load(const float* p) { return _mm512_loadu_ps(p); }
  static Ints repeat(int32_t x) { return _mm512_set1_epi32(x); }
  static Floats repeat(float x) { return _mm512_set1_ps(x); }
  static Ints pairs(Ints w, Ints x) { return _mm512_maddubs_epi16(w, x); }
  static Ints add_pairs(Ints a, Ints b) { return _mm512_add_epi16(a, b); }
  static Ints widen(Ints pairs) { return _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)); }
  static Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
  static Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
  static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static Floats zero() { return _mm512_setzero_ps(); }
  static void store(Floats x, float* to, bool accumulate) {
    _mm512_storeu_ps(to, accumulate ? _mm512_add_ps(_mm512_loadu_ps(to), x) : x);
  }
  static void keep(Ints& x) { asm("" : "+v"(x)); }
};

}  // namespace

const BlockTileKernel* block_tiles_avx512() {
  // Clang 14 cannot ask for F16C, which every CPU with AVX2 has.
  static const bool has = __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma");
  static const BlockTileKernel kernel = {.name = "tiles of 8-bit products, AVX-512",
                                         .together = kTogether,
                                         .panel_groups = kPanelGroups,
                                         .pairs = false,
                                         .unpack = unpack_function_of<Avx512Unpack>,
                                         .tile = tile_function_of<Avx512Tile>,
                                         .minima = kMinima};
  return has ? &kernel : nullptr;
}

}  // namespace sluice::impl::cpu::gemm

#else

namespace sluice::impl::cpu::gemm {

const BlockTileKernel* block_tiles_avx512() { return nullptr; }

}  // namespace sluice::impl::cpu::gemm

#endif
