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
#include "backend/cpu/gemm/blocks/tiles_x86-inl.h"

struct Avx2Tile {
  using Ints = __m256i;
  using Floats = __m256;
  static Ints weights(const BlockTileArgs& args, int64_t at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(args.w.weights + at));
  }
  static Floats scales(const BlockTileArgs& args, int64_t at) {
    return _mm256_loadu_ps(args.w.scales + at);
  }
  static Floats minima(const BlockTileArgs& args, int64_t at) {
    return _mm256_loadu_ps(args.w.minima + at);
  }
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

// A chunk holds eight k of row after row: four k of all rows, then the other four.
template <DType kType, int J>
[[gnu::always_inline]] inline void unpack_chunk(const uint8_t* sub, int8_t* out) {
  constexpr int kBits = kBlockLayout<kType>.bits;
  const __m256 low = _mm256_castsi256_ps(chunk_weights<X86Vectors, kBits, 0, J>(sub));
  const __m256 high = _mm256_castsi256_ps(chunk_weights<X86Vectors, kBits, 1, J>(sub));
  const auto put = [&](__m256 rows, int half) __attribute__((always_inline)) {
    // Rows come as 0 1 4 5 and 2 3 6 7.
    const __m256i ordered = _mm256_permute4x64_epi64(_mm256_castps_si256(rows), 0b11011000);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + (2 * J + half) * kTogether * kGroupRows),
                        ordered);
  };
  put(_mm256_shuffle_ps(low, high, 0b10001000), 0);
  put(_mm256_shuffle_ps(low, high, 0b11011101), 1);
}

template <DType kType>
void unpack(const std::byte* blocks, int64_t n_blocks, const UnpackedGroup& out) {
  constexpr BlockLayout kLayout = kBlockLayout<kType>;
  int8_t* weights = out.weights;
  float *scales = out.scales, *minima = out.minima;
  const auto* block = reinterpret_cast<const uint8_t*>(blocks);
  for (int64_t b = 0; b < n_blocks; ++b, block += kLayout.bytes) {
    const __m256 d = X86Vectors::load_halves(block);
    const __m256 m =
        kLayout.minima ? X86Vectors::load_halves(block + 2 * kGroupRows) : _mm256_setzero_ps();
    const uint8_t* sub = block + kLayout.weights;
    for (int64_t s = 0; s < kLayout.block / kSubBlock; ++s) {
      __m256 scale = d, minimum = m;
      if constexpr (kLayout.scales != 0) {
        const uint8_t* own = block + kLayout.scales + s * kGroupRows;
        scale = _mm256_mul_ps(d, _mm256_cvtepi32_ps(X86Vectors::widen<false>(own)));
        minimum = _mm256_mul_ps(m, _mm256_cvtepi32_ps(X86Vectors::widen<false>(own + 64)));
        minimum = _mm256_sub_ps(_mm256_setzero_ps(), minimum);
      }
      if constexpr (kLayout.offset != 0)
        minimum = _mm256_mul_ps(scale, _mm256_set1_ps(static_cast<float>(kLayout.offset)));
      _mm256_storeu_ps(scales, scale);
      _mm256_storeu_ps(minima, minimum);
      unpack_chunk<kType, 0>(sub, weights);
      unpack_chunk<kType, 1>(sub, weights);
      unpack_chunk<kType, 2>(sub, weights);
      unpack_chunk<kType, 3>(sub, weights);
      sub += kLayout.sub_bytes;
      weights += kSubBlock * kGroupRows;
      scales += kGroupRows;
      minima += kGroupRows;
    }
  }
}

UnpackFunction unpack_function(DType type) {
  switch (type) {
    case DType::kQ4_0:
      return unpack<DType::kQ4_0>;
    case DType::kQ4_1:
      return unpack<DType::kQ4_1>;
    case DType::kQ5_0:
      return unpack<DType::kQ5_0>;
    case DType::kQ5_1:
      return unpack<DType::kQ5_1>;
    case DType::kQ4_K:
      return unpack<DType::kQ4_K>;
    case DType::kQ5_K:
      return unpack<DType::kQ5_K>;
    default:
      return nullptr;
  }
}

BlockTileFunction tile_function(DType type) {
  if (unpack_function(type) == nullptr) return nullptr;
  return make_block_layout(type).bits == 4 ? tile<Avx2Tile, 8> : tile<Avx2Tile, 4>;
}

}  // namespace

const BlockTileKernel* block_tiles_avx2() {
  // Clang 14 cannot ask for F16C, which every CPU with AVX2 has.
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  static const BlockTileKernel kernel = {.name = "tiles of 8-bit products, AVX2",
                                         .together = kTogether,
                                         .pairs = false,
                                         .unpack = unpack_function,
                                         .tile = tile_function,
                                         .minima = true};
  return has ? &kernel : nullptr;
}

}  // namespace sluice::impl::cpu::gemm

#else

namespace sluice::impl::cpu::gemm {

const BlockTileKernel* block_tiles_avx2() { return nullptr; }

}  // namespace sluice::impl::cpu::gemm

#endif
