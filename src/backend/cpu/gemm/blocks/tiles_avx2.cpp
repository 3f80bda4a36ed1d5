// Tiles of blocks (gemm/blocks/tiles.h) on AVX2. Built with AVX2, FMA and F16C and called only
// where the CPU has them, so this file shares no inline function with the rest.

#include <utility>

#include "backend/cpu/gemm/blocks/kernel.h"
#include "backend/cpu/gemm/blocks/layout.h"
#include "backend/cpu/gemm/blocks/tiles.h"

#if defined(__x86_64__) && defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <immintrin.h>

namespace sluice::impl::cpu::gemm {
namespace {

#include "backend/cpu/gemm/blocks/group-inl.h"
#include "backend/cpu/gemm/blocks/ops_x86-inl.h"

constexpr int64_t kPanelGroups = 1;
constexpr int kMostBits = 5;
constexpr bool kMinima = true;

#include "backend/cpu/gemm/blocks/unpack_x86-inl.h"
// After it:
#include "backend/cpu/gemm/blocks/tiles_x86-inl.h"

struct Avx2Unpack {
  template <DType kType, int J>
  [[gnu::always_inline]] static void chunk(const uint8_t* sub, int8_t* out) {
    constexpr int kBits = kBlockLayout<kType>.bits;
    const __m256 low = _mm256_castsi256_ps(chunk_weights<X86Vectors, kBits, 0, J>(sub));
    const __m256 high = _mm256_castsi256_ps(chunk_weights<X86Vectors, kBits, 1, J>(sub));
    const auto put = [](int8_t * to, __m256 rows) __attribute__((always_inline)) {
      // Rows come as 0 1 4 5 and 2 3 6 7.
      const __m256i ordered = _mm256_permute4x64_epi64(_mm256_castps_si256(rows), 0b11011000);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), ordered);
    };
    put(out, _mm256_shuffle_ps(low, high, 0b10001000));
    put(out + kFour, _mm256_shuffle_ps(low, high, 0b11011101));
  }
};

struct Avx2Tile {
  using Ints = __m256i;
  using Floats = __m256;
  static Ints load(const int8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static Floats load(const float* p) { return _mm256_loadu_ps(p); }
  static Ints repeat(int32_t x) { return _mm256_set1_epi32(x); }
  static Floats repeat(float x) { return _mm256_set1_ps(x); }
  static Ints pairs(Ints w, Ints x) { return _mm256_maddubs_epi16(w, x); }
  static Ints add_pairs(Ints a, Ints b) { return _mm256_add_epi16(a, b); }
  static Ints widen(Ints pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }
  static Ints add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
  static Floats to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
  static Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static Floats zero() { return _mm256_setzero_ps(); }
  static void store(Floats x, float* to, bool accumulate) {
    _mm256_storeu_ps(to, accumulate ? _mm256_add_ps(_mm256_loadu_ps(to), x) : x);
  }
  static void keep(Ints& x) { asm("" : "+x"(x)); }
};

}  // namespace

const BlockTileKernel* block_tiles_avx2() {
  // Clang 14 cannot ask for F16C, which every CPU with AVX2 has.
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  static const BlockTileKernel kernel = {.name = "tiles of 8-bit products, AVX2",
                                         .together = kTogether,
                                         .panel_groups = kPanelGroups,
                                         .pairs = false,
                                         .unpack = unpack_function_of<Avx2Unpack>,
                                         .tile = tile_function_of<Avx2Tile>,
                                         .minima = kMinima};
  return has ? &kernel : nullptr;
}

}  // namespace sluice::impl::cpu::gemm

#else

namespace sluice::impl::cpu::gemm {

const BlockTileKernel* block_tiles_avx2() { return nullptr; }

}  // namespace sluice::impl::cpu::gemm

#endif
