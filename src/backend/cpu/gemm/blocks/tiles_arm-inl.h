// What tiles of blocks (gemm/blocks/tiles.h) on Arm have in common. Included in an unnamed
// namespace, after group-inl.h and ops_arm-inl.h, by files that are built for one instruction set.
// They define before how unpacked weights lie and what sums of a tile are in registers:
//
//   kTogether, kPairs                 BlockTileKernel's together and pairs
//   TileInts, TileFloats              two-dimensional arrays of vectors
//   first_sum()                       a sum of no products
//   add_chunk(sums, w, x)             products of eight k
//   add_scaled(total, sums, w_scales, x_scales)
//   add_minima(total, minima, x_products)
//   store(total, args)

static_assert(kTogether == kChunk || 2 * kTogether == kChunk);
constexpr int64_t kScaleFloats = (kPairs ? 2 : 1) * kGroupRows;

template <bool kMinima, bool kHalves>
void tile(const BlockTileArgs& args) {
  TileFloats total;
  for (auto& of_x : total)
    for (auto& sum : of_x) sum = vdupq_n_f32(0);
  const int8_t *w = args.w.weights, *x = args.x;
  const float *scales = args.w.scales, *minima = args.w.minima;
  const float *x_scales = args.x_scales, *x_products = args.x_products;
  constexpr int kParts = kHalves ? 2 : 1;  // of 32 k, each with a scale
  for (int64_t b = 0; b < args.n; ++b) {
    for (int part = 0; part < kParts; ++part) {
      TileInts sums;
      for (auto& of_x : sums)
        for (auto& sum : of_x) sum = first_sum();
      for (int j = 0; j < 4 / kParts; ++j)
        add_chunk(sums, w + j * kChunk * kGroupRows, x + j * kChunk * kTileX);
      add_scaled(total, sums, scales, x_scales);
      w += kSubBlock * kGroupRows / kParts;
      x += kSubBlock * kTileX / kParts;
      scales += kScaleFloats;
    }
    x_scales += 2 * kTileX;
    if constexpr (kMinima) {
      add_minima(total, minima, x_products);
      minima += kScaleFloats;
      x_products += 2 * kTileX;
    }
  }
  store(total, args);
}

// One number to a row of the group.
[[gnu::always_inline]] inline void put_scales(float32x4x2_t d, float* out) {
  if constexpr (!kPairs) return ArmVectors::store(d, out);
  for (int i = 0; i < 2; ++i) {
    const float32x2_t low = vget_low_f32(d.val[i]), high = vget_high_f32(d.val[i]);
    vst1q_f32(out + 8 * i, vcombine_f32(low, low));
    vst1q_f32(out + 8 * i + 4, vcombine_f32(high, high));
  }
}

// Eight weights of rows 2V and 2V + 1.
template <DType kType, int J, int V>
[[gnu::always_inline]] inline int8x16_t unpack_vector(const uint8_t* sub) {
  constexpr BlockLayout kLayout = kBlockLayout<kType>;
  return vaddq_s8(vreinterpretq_s8_u8(chunk_weights<ArmVectors, kLayout.bits, V, J>(sub)),
                  vdupq_n_s8(kLayout.offset));
}

// Of rows from 2V on, four of them.
template <DType kType, int J, int V>
[[gnu::always_inline]] inline void unpack_rows(const uint8_t* sub, int8_t* out) {
  const int8x16_t first = unpack_vector<kType, J, V>(sub);
  const int8x16_t second = unpack_vector<kType, J, V + 1>(sub);
  if constexpr (kTogether == kChunk) {
    vst1q_s8(out + V * 16, first);
    vst1q_s8(out + V * 16 + 16, second);
  } else {
    const int32x4_t a = vreinterpretq_s32_s8(first), b = vreinterpretq_s32_s8(second);
    vst1q_s8(out + V * 8, vreinterpretq_s8_s32(vuzp1q_s32(a, b)));
    vst1q_s8(out + V * 8 + kTogether * kGroupRows, vreinterpretq_s8_s32(vuzp2q_s32(a, b)));
  }
}

template <DType kType, int J>
[[gnu::always_inline]] inline void unpack_chunk(const uint8_t* sub, int8_t* out) {
  unpack_rows<kType, J, 0>(sub, out + J * kChunk * kGroupRows);
  unpack_rows<kType, J, 2>(sub, out + J * kChunk * kGroupRows);
}

template <DType kType>
void unpack(const std::byte* blocks, int64_t n_blocks, const UnpackedGroup& out) {
  constexpr BlockLayout kLayout = kBlockLayout<kType>;
  constexpr int64_t kScales = kLayout.block / kLayout.scale_width;
  int8_t* weights = out.weights;
  float *scales = out.scales, *minima = out.minima;
  const auto* block = reinterpret_cast<const uint8_t*>(blocks);
  for (int64_t b = 0; b < n_blocks; ++b, block += kLayout.bytes) {
    const float32x4x2_t d = ArmVectors::load_halves(block);
    for (int64_t s = 0; s < kScales; ++s, scales += kScaleFloats) {
      if constexpr (kLayout.scales == 0) {
        put_scales(d, scales);
      } else {
        const auto scale = ArmVectors::widen<!kLayout.minima>(block + kLayout.scales + 8 * s);
        const auto wide = ArmVectors::to_floats(scale);
        put_scales({vmulq_f32(d.val[0], wide.val[0]), vmulq_f32(d.val[1], wide.val[1])}, scales);
      }
    }
    if constexpr (kLayout.minima) {
      const float32x4x2_t m = ArmVectors::load_halves(block + 2 * kGroupRows);
      for (int64_t s = 0; s < kScales; ++s, minima += kScaleFloats) {
        if constexpr (kLayout.scales == 0) {
          put_scales(m, minima);
        } else {
          const auto scale = ArmVectors::widen<false>(block + kLayout.scales + 64 + 8 * s);
          const auto wide = ArmVectors::to_floats(scale);
          put_scales({vnegq_f32(vmulq_f32(m.val[0], wide.val[0])),
                      vnegq_f32(vmulq_f32(m.val[1], wide.val[1]))},
                     minima);
        }
      }
    }
    const uint8_t* sub = block + kLayout.weights;
    for (int64_t s = 0; s < kLayout.block / kSubBlock; ++s) {
      unpack_chunk<kType, 0>(sub, weights);
      unpack_chunk<kType, 1>(sub, weights);
      unpack_chunk<kType, 2>(sub, weights);
      unpack_chunk<kType, 3>(sub, weights);
      sub += kLayout.sub_bytes;
      weights += kSubBlock * kGroupRows;
    }
  }
}

UnpackFunction unpack_function(DType type) {
  switch (type) {
    case DType::kQ8_0:
      return unpack<DType::kQ8_0>;
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
    case DType::kQ6_K:
      return unpack<DType::kQ6_K>;
    default:
      return nullptr;
  }
}

BlockTileFunction tile_function(DType type) {
  if (unpack_function(type) == nullptr) return nullptr;
  const BlockLayout layout = make_block_layout(type);
  if (layout.scale_width == 16) return tile<false, true>;
  return layout.minima ? tile<true, false> : tile<false, false>;
}
