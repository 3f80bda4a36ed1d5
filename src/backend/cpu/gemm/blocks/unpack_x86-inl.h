// Unpacking of blocks for tiles (gemm/blocks/tiles.h) on x86. Included in an unnamed namespace,
// after ops_x86-inl.h, by one file for each instruction set, which defines before:
//
//   kPanelGroups  BlockTileKernel's panel_groups
//   kMinima       BlockTileKernel's minima
//   kMostBits     of a weight; types with more have no tiles
//
// U::chunk<kType, J>(sub, out) unpacks chunk J of 32 weights of a group, which has eight k of row
// after row: four k of all rows to out, the other four kFour bytes later.

// NOLINTBEGIN(llvm-header-guard): included once per file.

constexpr int64_t kTogether = 4;
constexpr int64_t kPanelRows = kPanelGroups * kGroupRows;
constexpr int64_t kFour = kTogether * kPanelRows;  // bytes of four k

// Scale s of the eight rows: `first` are halves d or m of a block, `at` where its integers begin.
template <DType kType, bool kSigned>
[[gnu::always_inline]] inline __m256 scale_of(const uint8_t* block, int64_t first, int64_t at,
                                              int64_t s) {
  const __m256 d = X86Vectors::load_halves(block + first);
  if constexpr (kBlockLayout<kType>.scales == 0)
    return d;
  else
    return _mm256_mul_ps(d, _mm256_cvtepi32_ps(X86Vectors::widen<kSigned>(block + at + 8 * s)));
}

template <class U, DType kType>
void unpack(const std::byte* blocks, int64_t n_blocks, const UnpackedGroup& out) {
  constexpr BlockLayout kLayout = kBlockLayout<kType>;
  int8_t* weights = out.weights;
  float *scales = out.scales, *minima = out.minima;
  const auto* block = reinterpret_cast<const uint8_t*>(blocks);
  for (int64_t b = 0; b < n_blocks; ++b, block += kLayout.bytes) {
    for (int64_t s = 0; s < kLayout.block / kLayout.scale_width; ++s) {
      const __m256 scale = scale_of<kType, !kLayout.minima>(block, 0, kLayout.scales, s);
      _mm256_storeu_ps(scales, scale);
      scales += kPanelRows;
      if constexpr (!kLayout.minima && !kMinima) continue;
      __m256 minimum = _mm256_mul_ps(scale, _mm256_set1_ps(static_cast<float>(kLayout.offset)));
      if constexpr (kLayout.minima)
        minimum = scale_of<kType, false>(block, 2 * kGroupRows, kLayout.scales + 64, s);
      if constexpr (kLayout.minima && kLayout.scales != 0)
        minimum = _mm256_sub_ps(_mm256_setzero_ps(), minimum);
      _mm256_storeu_ps(minima, minimum);
      minima += kPanelRows;
    }
    const uint8_t* sub = block + kLayout.weights;
    for (int64_t s = 0; s < kLayout.block / kSubBlock; ++s) {
      U::template chunk<kType, 0>(sub, weights);
      U::template chunk<kType, 1>(sub, weights + 2 * kFour);
      U::template chunk<kType, 2>(sub, weights + 4 * kFour);
      U::template chunk<kType, 3>(sub, weights + 6 * kFour);
      sub += kLayout.sub_bytes;
      weights += kSubBlock * kPanelRows;
    }
  }
}

// f<type>() of a type that has tiles, else nullptr.
template <DType kType, class F>
auto of_type(F f) -> decltype(f.template operator()<kType>()) {
  if constexpr (kBlockLayout<kType>.bits <= kMostBits)
    return f.template operator()<kType>();
  else
    return nullptr;
}
template <class F>
auto by_type(DType type, F f) -> decltype(f.template operator()<DType::kQ4_0>()) {
  switch (type) {
    case DType::kQ8_0:
      return of_type<DType::kQ8_0>(f);
    case DType::kQ4_0:
      return of_type<DType::kQ4_0>(f);
    case DType::kQ4_1:
      return of_type<DType::kQ4_1>(f);
    case DType::kQ5_0:
      return of_type<DType::kQ5_0>(f);
    case DType::kQ5_1:
      return of_type<DType::kQ5_1>(f);
    case DType::kQ4_K:
      return of_type<DType::kQ4_K>(f);
    case DType::kQ5_K:
      return of_type<DType::kQ5_K>(f);
    case DType::kQ6_K:
      return of_type<DType::kQ6_K>(f);
    default:
      return nullptr;
  }
}

template <class U>
UnpackFunction unpack_function_of(DType type) {
  return by_type(type, []<DType kType>() -> UnpackFunction { return unpack<U, kType>; });
}

// NOLINTEND(llvm-header-guard)
