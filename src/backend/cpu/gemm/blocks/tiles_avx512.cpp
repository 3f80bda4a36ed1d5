// Tiles of blocks (gemm/blocks/tiles.h) of two groups on AVX-512 for bytes and 16-bit numbers,
// where a tile of AVX2 waits for the decoder: the same instructions on both groups at once. Built
// with AVX-512 and called only where the CPU has it, so this file shares no inline function with
// the rest. Unpacking and single groups are those of tiles_avx2.cpp.

#include <utility>

#include "backend/cpu/gemm/blocks/layout.h"
#include "backend/cpu/gemm/blocks/tiles.h"

#if defined(__x86_64__) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)

#include <immintrin.h>

namespace sluice::impl::cpu::gemm {
namespace {

#include "backend/cpu/gemm/blocks/tiles_x86-inl.h"

// Halves of a vector belong to two groups.
struct Avx512Tile {
  using Ints = __m512i;
  using Floats = __m512;
  static Ints weights(const BlockTileArgs& args, int64_t at) {
    const auto half = [](const int8_t* p) __attribute__((always_inline)) {
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    };
    return _mm512_inserti64x4(_mm512_castsi256_si512(half(args.w.weights + at)),
                              half(args.next.weights + at), 1);
  }
  static Floats halves(const float* first, const float* second) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(first)),
                              _mm256_loadu_ps(second), 1);
  }
  static Floats scales(const BlockTileArgs& args, int64_t at) {
    return halves(args.w.scales + at, args.next.scales + at);
  }
  static Floats minima(const BlockTileArgs& args, int64_t at) {
    return halves(args.w.minima + at, args.next.minima + at);
  }
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

BlockTileFunction tile_function(DType type) {
  return make_block_layout(type).bits == 4 ? tile<Avx512Tile, 8> : tile<Avx512Tile, 4>;
}

}  // namespace

const BlockTileKernel* block_tiles_avx512() {
  static const bool has = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  if (!has || block_tiles_avx2() == nullptr) return nullptr;
  static const BlockTileKernel kernel = [] {
    BlockTileKernel made = *block_tiles_avx2();
    made.name = "tiles of 8-bit products, AVX-512";
    made.two = tile_function;
    return made;
  }();
  return &kernel;
}

}  // namespace sluice::impl::cpu::gemm

#else

namespace sluice::impl::cpu::gemm {

const BlockTileKernel* block_tiles_avx512() { return nullptr; }

}  // namespace sluice::impl::cpu::gemm

#endif
