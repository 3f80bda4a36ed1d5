// Tiles of blocks (gemm/blocks/tiles.h) on the dot products of AVX-512 VNNI. Built with those
// instructions and called only where the CPU has them, so this file shares no inline function with
// the rest.
//
// One instruction multiplies four k of sixteen rows of weights with those of one row of activations
// and adds the products to 32 bits. Weights stay unsigned: what a type takes off them is what sums
// begin with. To 32 k a vector of sums has eight such instructions and three operations on floats,
// with minima four, all on the same two ports. A tile has twelve vectors of sums: an instruction
// waits for the one before on the same sum, and eight are too few to hide that.

#include <utility>

#include "backend/cpu/gemm/blocks/layout.h"
#include "backend/cpu/gemm/blocks/tiles.h"

#if defined(__x86_64__) && defined(__AVX512F__) && defined(__AVX512BW__) && \
    defined(__AVX512VNNI__) && defined(__FMA__) && defined(__F16C__)

#include <immintrin.h>

namespace sluice::impl::cpu::gemm {
namespace {

#include "backend/cpu/gemm/blocks/ops_x86-inl.h"

constexpr int64_t kPanelGroups = 6;
constexpr int kMostBits = 8;
constexpr bool kMinima = false;

#include "backend/cpu/gemm/blocks/unpack_x86-inl.h"
// After it:
#include "backend/cpu/gemm/blocks/chunk_avx512-inl.h"
#include "backend/cpu/gemm/blocks/unpack_avx512-inl.h"

constexpr int64_t kLanes = 16;  // rows of weights in a vector

template <DType kType>
constexpr int32_t kOffset = unsigned_offset(kBlockLayout<kType>);

// Four k of a row of activations in all places.
[[gnu::always_inline]] inline __m512i repeat_four(const int8_t* x) {
  int32_t four = 0;
  __builtin_memcpy(&four, x, sizeof four);
  return _mm512_set1_epi32(four);
}

// Of kWidth k: every vector of `sums` begins with its row's start, or with zero.
template <int64_t kWidth, bool kStarts, int kVectors>
[[gnu::always_inline]] inline void multiply(const int8_t* w, const int8_t* x, const int32_t* starts,
                                            __m512i (&sums)[kTileX][kVectors]) {
#pragma GCC unroll 4
  for (int r = 0; r < kTileX; ++r)
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v)
      sums[r][v] = kStarts ? _mm512_set1_epi32(starts[r]) : _mm512_setzero_si512();
#pragma GCC unroll 8
  for (int at = 0; at < kWidth / kTogether; ++at) {
    __m512i weights[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v)
      weights[v] = _mm512_loadu_si512(w + at * kFour + v * kLanes * kTogether);
#pragma GCC unroll 4
    for (int r = 0; r < kTileX; ++r) {
      const __m512i four = repeat_four(x + (at / 2 * kTileX + r) * kChunk + at % 2 * kTogether);
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v)
        sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], weights[v], four);
    }
  }
}

template <DType kType, int kVectors>
void tile_of(const BlockTileArgs& args) {
  constexpr int64_t kWidth = kBlockLayout<kType>.scale_width;
  __m512 total[kTileX][kVectors];
#pragma GCC unroll 4
  for (auto& of_row : total)
#pragma GCC unroll 3
    for (auto& sum : of_row) sum = _mm512_setzero_ps();
  const int8_t *w = args.w.weights, *x = args.x;
  const float *scales = args.w.scales, *minima = args.w.minima;
  const float *x_scales = args.x_scales, *x_products = args.x_products;
  const int32_t* starts = args.x_starts;
  for (int64_t b = 0; b < args.n; ++b) {
#pragma GCC unroll 2
    for (int part = 0; part < kSubBlock / kWidth; ++part) {
      __m512i sums[kTileX][kVectors];
      multiply<kWidth, kOffset<kType> != 0>(w, x, starts, sums);
#pragma GCC unroll 4
      for (int r = 0; r < kTileX; ++r)  // activations' come as a a b b
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) {
          const __m512 scale =
              _mm512_mul_ps(_mm512_loadu_ps(scales + v * kLanes), _mm512_set1_ps(x_scales[2 * r]));
          total[r][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r][v]), scale, total[r][v]);
        }
      w += kWidth * kPanelRows;
      x += kWidth * kTileX;
      scales += kPanelRows;
      if constexpr (kOffset<kType> != 0) starts += kTileX;
    }
    if constexpr (kBlockLayout<kType>.minima) {
#pragma GCC unroll 4
      for (int r = 0; r < kTileX; ++r)
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v)
          total[r][v] = _mm512_fmadd_ps(_mm512_loadu_ps(minima + v * kLanes),
                                        _mm512_set1_ps(x_products[2 * r]), total[r][v]);
      minima += kPanelRows;
      x_products += 2 * kTileX;
    }
    x_scales += 2 * kTileX;
  }
#pragma GCC unroll 4
  for (int r = 0; r < kTileX; ++r)
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      float* const out = args.out + r * args.out_stride + v * kLanes;
      _mm512_storeu_ps(
          out, args.accumulate ? _mm512_add_ps(_mm512_loadu_ps(out), total[r][v]) : total[r][v]);
    }
}

// As many vectors as the panel has pairs of groups.
template <DType kType>
void tile(const BlockTileArgs& args) {
  if (args.groups > 4)
    tile_of<kType, 3>(args);
  else if (args.groups > 2)
    tile_of<kType, 2>(args);
  else
    tile_of<kType, 1>(args);
}

BlockTileFunction tile_function(DType type) {
  return by_type(type, []<DType kType>() -> BlockTileFunction { return tile<kType>; });
}

}  // namespace

const BlockTileKernel* block_tiles_vnni() {
  // Clang 14 cannot ask for F16C, which every CPU with AVX2 has.
  static const bool has = __builtin_cpu_supports("avx512vnni") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("fma");
  static const BlockTileKernel kernel = {.name = "tiles of 8-bit dot products, AVX-512 VNNI",
                                         .together = kTogether,
                                         .panel_groups = kPanelGroups,
                                         .pairs = false,
                                         .unpack = unpack_function_of<Avx512Unpack>,
                                         .tile = tile_function,
                                         .minima = kMinima,
                                         .unsigned_weights = true,
                                         .few_rows = 6};
  return has ? &kernel : nullptr;
}

}  // namespace sluice::impl::cpu::gemm

#else

namespace sluice::impl::cpu::gemm {

const BlockTileKernel* block_tiles_vnni() { return nullptr; }

}  // namespace sluice::impl::cpu::gemm

#endif
