// The product of a group (gemm/blocks/kernel.h) over vector operations `O` of an instruction set.
// Included by one file for each set, inside of its own namespace: no two share a function.
//
// O has vectors of kBytes bytes, kVectors = 64 / kBytes to a chunk, and
// asks for weights kAhead bytes before they are read, in large blocks kLargeAhead, where it is not
// 0, and
//   Bytes    bytes of weights or of activations
//   Ints     partial sums of one vector's products
//   Rows     eight int32, a group's rows;  Floats  eight float32
//   join<kNibble, kFrom, kMask>(both, bits)  nibble kNibble of every byte with those of its bits
//            from kFrom on that kMask has, whose lowest is bit 4

// NOLINTBEGIN(llvm-header-guard): included once per file.

// Vector V of chunk J: unsigned weights, but for 8 bits, which are signed.
template <class O, int kBits, int V, int J>
[[gnu::always_inline]] inline typename O::Bytes chunk_weights(const uint8_t* sub) {
  constexpr int kAt = V * O::kBytes;
  if constexpr (kBits == 8) {
    return O::load(sub + J * 64 + kAt);
  } else {
    constexpr int kHigh = kBits == 5 ? 32 : kBits == 6 ? 64 : 0;
    const auto both = O::load(sub + kHigh + J % 2 * 64 + kAt);
    if constexpr (kBits == 5)
      return O::template join<J / 2, kAt / 32 * 4 + J, 0x10>(both, O::load(sub + kAt % 32));
    else if constexpr (kBits == 6)
      return O::template join<J / 2, 2 * J, 0x30>(both, O::load(sub + kAt));
    else
      return J < 2 ? O::low_nibbles(both) : O::high_nibbles(both);
  }
}

// Adds the products of vector V of chunk J with kX rows (or pairs) of activations.
template <class O, int kBits, int kX, int V, int J>
[[gnu::always_inline]] inline void add_chunk(const uint8_t* sub, const int8_t* const (&x)[kX],
                                             typename O::Ints (&sums)[kX][O::kVectors]) {
  const auto w = chunk_weights<O, kBits, V, J>(sub);
  for (int i = 0; i < kX; ++i)
    sums[i][V] = O::template dot<kBits == 8>(sums[i][V], w, O::load_x(x[i] + J * O::kXBytes));
}

// Products of chunks [J, J + kCount) of 32 weights: rows of the group for each row of x. Sums begin
// with starts[i] from 4 `at` on if kStarts, else with zero.
template <class O, int kBits, int kX, int J, int kCount, bool kStarts>
[[gnu::always_inline]] inline void multiply_chunks(const uint8_t* sub, const int8_t* const (&x)[kX],
                                                   const int32_t* const (&starts)[kX], int64_t at,
                                                   typename O::Rows (&rows)[kX * O::kXRows]) {
  typename O::Ints sums[kX][O::kVectors];
  for (int i = 0; i < kX; ++i)
    for (auto& sum : sums[i]) {
      if constexpr (kStarts)
        sum = O::start(starts[i] + 4 * at);
      else
        sum = O::no_ints();
    }
  [&]<int... V>(std::integer_sequence<int, V...>) __attribute__((always_inline)) {
    ((add_chunk<O, kBits, kX, V, J>(sub, x, sums), add_chunk<O, kBits, kX, V, J + 1>(sub, x, sums)),
     ...);
    if constexpr (kCount == 4)
      ((add_chunk<O, kBits, kX, V, J + 2>(sub, x, sums),
        add_chunk<O, kBits, kX, V, J + 3>(sub, x, sums)),
       ...);
  }
  (std::make_integer_sequence<int, O::kVectors>{});
  for (int i = 0; i < kX; ++i) O::add_partials(sums[i], &rows[i * O::kXRows]);
}

// Where rows of x lie. Rows of a last pair beyond the used ones are computed and dropped.
template <class O, int kX, int kUsed>
struct GroupX {
  const int8_t* values[kX];
  const int32_t* starts[kX];
  const float* scales[kUsed];
  const int32_t* sums[kUsed];
  const float* products[kUsed];

  explicit GroupX(const GroupArgs& args) {
    for (int i = 0; i < kX; ++i) {
      values[i] = args.x[i * O::kXRows].values;
      starts[i] = args.x[i * O::kXRows].starts;
    }
    for (int r = 0; r < kUsed; ++r) {
      scales[r] = args.x[r].scales;
      sums[r] = args.x[r].sums;
      products[r] = args.x[r].products;
    }
  }
};

// Asks for kBytes that a stream reads kAhead bytes later.
template <int64_t kAhead, int64_t kBytes>
[[gnu::always_inline]] inline void fetch(const uint8_t* at) {
  if constexpr (kAhead > 0)
    for (int64_t i = 0; i < kBytes; i += 64) __builtin_prefetch(at + kAhead + i);
}

// Blocks of 32 weights. Several groups take the same x.
template <class O, DType kType, int kX, int kUsed, int kGroups>
void multiply_small(const GroupArgs& args) {
  constexpr BlockLayout kLayout = kBlockLayout<kType>;
  constexpr int kRows = kX * O::kXRows;
  GroupX<O, kX, kUsed> x(args);
  typename O::Floats total[kGroups][kUsed];
  for (auto& of_group : total)
    for (auto& sum : of_group) sum = O::no_floats();
  const auto* block = reinterpret_cast<const uint8_t*>(args.weights);
  for (int64_t b = 0; b < args.n_blocks; ++b, block += kLayout.bytes) {
#pragma GCC unroll 8
    for (int g = 0; g < kGroups; ++g) {
      const uint8_t* of_group = block + g * args.group_stride;
      fetch<O::kAhead, kLayout.bytes>(of_group);
      typename O::Rows rows[kRows];
      multiply_chunks<O, kLayout.bits, kX, 0, 4, true>(of_group + kLayout.weights, x.values,
                                                       x.starts, b, rows);
      const auto d = O::load_halves(of_group);
      for (int r = 0; r < kUsed; ++r) {
        total[g][r] = O::fma(O::sums_to_floats(rows[r]), O::scaled(d, x.scales[r][b]), total[g][r]);
        if constexpr (kLayout.minima)
          total[g][r] =
              O::fma(O::load_halves(of_group + 16), O::repeat(x.products[r][b]), total[g][r]);
      }
    }
    for (int i = 0; i < kX; ++i) x.values[i] += 4 * O::kXBytes;
  }
  // Unless these loops are unrolled early GCC 12 keeps the sums on the stack.
#pragma GCC unroll 8
  for (int g = 0; g < kGroups; ++g)
#pragma GCC unroll 4
    for (int r = 0; r < kUsed; ++r)
      O::store(total[g][r], args.out + g * args.out_group_stride + r * args.out_stride);
}

// Part kPart of sub-block s, the weights of one integer scale: adds their products.
template <class O, DType kType, int kX, int kUsed, int kPart>
[[gnu::always_inline]] inline void add_scaled(const uint8_t* sub, const uint8_t* scales, int64_t s,
                                              const GroupX<O, kX, kUsed>& x,
                                              typename O::Rows (&scaled)[kUsed],
                                              typename O::Rows (&minima)[kUsed]) {
  constexpr BlockLayout kLayout = kBlockLayout<kType>;
  constexpr int kChunks = kLayout.scale_width / kChunk;
  const int64_t at = s * (4 / kChunks) + kPart;
  typename O::Rows rows[kX * O::kXRows];
  multiply_chunks<O, kLayout.bits, kX, kPart * kChunks, kChunks, kLayout.offset != 0>(
      sub, x.values, x.starts, at, rows);
  const auto scale = O::template widen<!kLayout.minima>(scales + at * kGroupRows);
  for (int r = 0; r < kUsed; ++r) {
    scaled[r] = O::multiply_add(rows[r], scale, scaled[r]);
    if constexpr (kLayout.minima)
      minima[r] = O::add_multiple(scales + 64 + at * kGroupRows, x.sums[r][at], minima[r]);
  }
}

// A block of 256 weights with integer scales: its sums are integers.
template <class O, DType kType, int kX, int kUsed>
[[gnu::always_inline]] inline void add_large_block(const uint8_t* block, int64_t b,
                                                   GroupX<O, kX, kUsed> x,
                                                   typename O::Floats (&total)[kUsed]) {
  constexpr BlockLayout kLayout = kBlockLayout<kType>;
  typename O::Rows scaled[kUsed], minima[kUsed];
  for (auto& sum : scaled) sum = O::no_rows();
  for (auto& sum : minima) sum = O::no_rows();
  const uint8_t* scales = block + kLayout.scales;
  for (int64_t s = 0; s < kLayout.block / kSubBlock; ++s) {
    const uint8_t* sub = block + kLayout.weights + s * kLayout.sub_bytes;
    fetch<O::kLargeAhead, kLayout.sub_bytes>(sub);
    add_scaled<O, kType, kX, kUsed, 0>(sub, scales, s, x, scaled, minima);
    if constexpr (kLayout.scale_width == 16)
      add_scaled<O, kType, kX, kUsed, 1>(sub, scales, s, x, scaled, minima);
    for (int i = 0; i < kX; ++i) x.values[i] += 4 * O::kXBytes;
  }
  const auto d = O::load_halves(block);
  for (int r = 0; r < kUsed; ++r) {
    total[r] = O::fma(O::to_floats(scaled[r]), O::scaled(d, x.scales[r][b]), total[r]);
    if constexpr (kLayout.minima)
      total[r] = O::fma(O::to_floats(minima[r]),
                        O::scaled(O::load_halves(block + 16), -x.scales[r][b]), total[r]);
  }
}

template <class O, DType kType, int kX, int kUsed, int kGroups>
void multiply_large(const GroupArgs& args) {
  constexpr BlockLayout kLayout = kBlockLayout<kType>;
  GroupX<O, kX, kUsed> x(args);
  typename O::Floats total[kGroups][kUsed];
  for (auto& of_group : total)
    for (auto& sum : of_group) sum = O::no_floats();
  const auto* block = reinterpret_cast<const uint8_t*>(args.weights);
  for (int64_t b = 0; b < args.n_blocks; ++b, block += kLayout.bytes) {
#pragma GCC unroll 8
    for (int g = 0; g < kGroups; ++g)
      add_large_block<O, kType, kX, kUsed>(block + g * args.group_stride, b, x, total[g]);
    for (int i = 0; i < kX; ++i) x.values[i] += kLayout.block / kChunk * O::kXBytes;
    constexpr int64_t kScales = kLayout.block / kLayout.scale_width;
    for (int i = 0; i < kX; ++i) x.starts[i] += 4 * kScales;
    for (int r = 0; r < kUsed; ++r) x.sums[r] += kScales;
  }
  // Unless these loops are unrolled early GCC 12 keeps the sums on the stack.
#pragma GCC unroll 8
  for (int g = 0; g < kGroups; ++g)
#pragma GCC unroll 4
    for (int r = 0; r < kUsed; ++r)
      O::store(total[g][r], args.out + g * args.out_group_stride + r * args.out_stride);
}

template <class O, DType kType, int kUsed, int kGroups>
void multiply_group(const GroupArgs& args) {
  constexpr int kX = (kUsed + O::kXRows - 1) / O::kXRows;
  if constexpr (kBlockLayout<kType>.block == kSubBlock)
    multiply_small<O, kType, kX, kUsed, kGroups>(args);
  else
    multiply_large<O, kType, kX, kUsed, kGroups>(args);
}

template <class O, int kUsed, int kGroups>
GroupFunction group_function_of(DType type) {
  switch (type) {
    case DType::kQ8_0:
      return multiply_group<O, DType::kQ8_0, kUsed, kGroups>;
    case DType::kQ4_0:
      return multiply_group<O, DType::kQ4_0, kUsed, kGroups>;
    case DType::kQ4_1:
      return multiply_group<O, DType::kQ4_1, kUsed, kGroups>;
    case DType::kQ5_0:
      return multiply_group<O, DType::kQ5_0, kUsed, kGroups>;
    case DType::kQ5_1:
      return multiply_group<O, DType::kQ5_1, kUsed, kGroups>;
    case DType::kQ4_K:
      return multiply_group<O, DType::kQ4_K, kUsed, kGroups>;
    case DType::kQ5_K:
      return multiply_group<O, DType::kQ5_K, kUsed, kGroups>;
    case DType::kQ6_K:
      return multiply_group<O, DType::kQ6_K, kUsed, kGroups>;
    default:
      return nullptr;
  }
}

// NOLINTEND(llvm-header-guard)
