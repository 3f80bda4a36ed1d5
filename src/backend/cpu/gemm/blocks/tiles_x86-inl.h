// The register tile of blocks (gemm/blocks/tiles.h) on x86 over vector operations `O`. Included in
// an unnamed namespace, after unpack_x86-inl.h, by one file for each instruction set.
//
// One instruction multiplies four k of the rows of weights with those of one row of activations and
// adds pairs of products to 16 bits. Weights of 4 and 5 bits stay unsigned, so that eight or four
// such pairs fit before they are widened; what a type takes off its weights comes off with the
// minima. Weights of 6 and 8 bits would be widened every time.
//
// O has vectors of as many rows of weights as a panel has. Its functions:
// - load(bytes), load(floats)
// - repeat(x): an int32 or a float in all places
// - pairs(weights, x), add_pairs(a, b): products in 16 bits
// - widen(pairs), add(a, b): in 32 bits
// - to_floats(ints), multiply(a, b), fma(a, b, c), zero()
// - store(total, to, accumulate)
// - keep(ints): in a register. GCC 12 would form all products first, and run out of registers.

// NOLINTBEGIN(llvm-header-guard): included once per file.

constexpr int kSteps = kSubBlock / kTogether;

// Four k of one row of activations.
template <int kAt>
[[gnu::always_inline]] inline int32_t four_of_row(const int8_t* x, int row) {
  int32_t four = 0;
  __builtin_memcpy(&four, x + kAt / 2 * kTileX * kChunk + row * kChunk + kAt % 2 * kTogether,
                   sizeof four);
  return four;
}

// Products of step kAt of 32 k.
template <class O, int kAt, bool kFirst>
[[gnu::always_inline]] inline void add_step(const int8_t* w, const int8_t* x,
                                            typename O::Ints (&pairs)[kTileX]) {
  const auto weights = O::load(w + kAt * kFour);
#pragma GCC unroll 4
  for (int r = 0; r < kTileX; ++r) {
    const auto products = O::pairs(weights, O::repeat(four_of_row<kAt>(x, r)));
    pairs[r] = kFirst ? products : O::add_pairs(pairs[r], products);
    O::keep(pairs[r]);
  }
}
template <class O, int kFrom, int... kAt>
[[gnu::always_inline]] inline void add_steps(const int8_t* w, const int8_t* x,
                                             typename O::Ints (&pairs)[kTileX],
                                             std::integer_sequence<int, kAt...> /*steps*/) {
  (add_step<O, kFrom + kAt, kAt == 0>(w, x, pairs), ...);
}

// kFit: sums of pairs that fit 16 bits.
template <class O, int kFit>
void tile(const BlockTileArgs& args) {
  static_assert(kFit == kSteps || 2 * kFit == kSteps);
  using Steps = std::make_integer_sequence<int, kFit>;
  typename O::Floats total[kTileX];
  for (auto& sum : total) sum = O::zero();
  const int8_t *w = args.w.weights, *x = args.x;
  for (int64_t b = 0; b < args.n; ++b, w += kSubBlock * kPanelRows, x += kSubBlock * kTileX) {
    typename O::Ints pairs[kTileX], sums[kTileX];
    add_steps<O, 0>(w, x, pairs, Steps{});
#pragma GCC unroll 4
    for (int r = 0; r < kTileX; ++r) sums[r] = O::widen(pairs[r]);
    if constexpr (kFit < kSteps) {
      add_steps<O, kFit>(w, x, pairs, Steps{});
#pragma GCC unroll 4
      for (int r = 0; r < kTileX; ++r) sums[r] = O::add(sums[r], O::widen(pairs[r]));
    }
    const auto scales = O::load(args.w.scales + b * kPanelRows);
    const auto minima = O::load(args.w.minima + b * kPanelRows);
#pragma GCC unroll 4
    for (int r = 0; r < kTileX; ++r) {  // numbers of rows of activations come as a a b b
      const int64_t own = (b * kTileX + r) * 2;
      const auto scale = O::multiply(scales, O::repeat(args.x_scales[own]));
      total[r] = O::fma(O::to_floats(sums[r]), scale, total[r]);
      total[r] = O::fma(minima, O::repeat(args.x_products[own]), total[r]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kTileX; ++r)
    O::store(total[r], args.out + r * args.out_stride, args.accumulate);
}

template <class O>
BlockTileFunction tile_function_of(DType type) {
  return by_type(type, []<DType kType>() -> BlockTileFunction {
    return tile < O, kBlockLayout<kType>.bits == 4 ? 8 : 4 > ;
  });
}

// NOLINTEND(llvm-header-guard)
