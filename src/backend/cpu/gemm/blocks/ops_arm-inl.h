// Vector operations of Arm's Advanced SIMD for group-inl.h; included inside of a namespace.

// NOLINTBEGIN(llvm-header-guard): included once per file.

struct ArmVectors {
  static constexpr int kBytes = 16, kVectors = 4;
  using Bytes = uint8x16_t;
  using Ints = int32x4_t;
  using Rows = int32x4x2_t;
  using Floats = float32x4x2_t;

  static Bytes load(const uint8_t* p) { return vld1q_u8(p); }
  static Bytes low_nibbles(Bytes x) { return vandq_u8(x, vdupq_n_u8(0xf)); }
  static Bytes high_nibbles(Bytes x) { return vshrq_n_u8(x, 4); }
  static Bytes merge(Bytes a, Bytes b) { return vorrq_u8(a, b); }
  // Bits from kFrom on to the place of kMask, whose lowest bit is 4.
  template <int kFrom, int kMask>
  static Bytes move_bits(Bytes x) {
    if constexpr (kFrom < 4) x = vshlq_n_u8(x, 4 - kFrom);
    if constexpr (kFrom > 4) x = vshrq_n_u8(x, kFrom - 4);
    return vandq_u8(x, vdupq_n_u8(kMask));
  }

  // Left alone GCC 12 copies a zero from another register, which takes a vector pipe; movi takes
  // none: tiles are 10% faster.
  static Ints no_ints() {
    Ints zero;
    asm volatile("movi %0.4s, #0" : "=w"(zero));
    return zero;
  }
  static Rows no_rows() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
  static Floats no_floats() { return {vdupq_n_f32(0), vdupq_n_f32(0)}; }
  static Rows repeat_int(int32_t x) { return {vdupq_n_s32(x), vdupq_n_s32(x)}; }
  static Floats repeat(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
  static Rows add(Rows a, int32_t b) {
    const int32x4_t all = vdupq_n_s32(b);
    return {vaddq_s32(a.val[0], all), vaddq_s32(a.val[1], all)};
  }
  static Rows multiply_add(Rows a, Rows b, Rows c) {
    return {vmlaq_s32(c.val[0], a.val[0], b.val[0]), vmlaq_s32(c.val[1], a.val[1], b.val[1])};
  }
  template <bool kSigned>
  static Rows widen(const uint8_t* p) {
    const uint8x8_t bytes = vld1_u8(p);
    const int16x8_t wide =
        kSigned ? vmovl_s8(vreinterpret_s8_u8(bytes)) : vreinterpretq_s16_u16(vmovl_u8(bytes));
    return {vmovl_s16(vget_low_s16(wide)), vmovl_high_s16(wide)};
  }
  static Floats to_floats(Rows x) { return {vcvtq_f32_s32(x.val[0]), vcvtq_f32_s32(x.val[1])}; }
  static Floats scaled(Floats x, float by) {
    return {vmulq_n_f32(x.val[0], by), vmulq_n_f32(x.val[1], by)};
  }
  static Floats fma(Floats a, Floats b, Floats c) {
    return {vfmaq_f32(c.val[0], a.val[0], b.val[0]), vfmaq_f32(c.val[1], a.val[1], b.val[1])};
  }
  static Floats load_halves(const uint8_t* p) {
    const float16x8_t halves = vreinterpretq_f16_u8(vld1q_u8(p));
    return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
  }
  static void store(Floats x, float* to) {
    vst1q_f32(to, x.val[0]);
    vst1q_f32(to + 4, x.val[1]);
  }
};

// One row of activations: four products to a lane. kDoubled: each eight values come twice.
template <bool kDoubled>
struct ArmDot : ArmVectors {
  static constexpr int kXRows = 1, kXBytes = kDoubled ? 16 : 8;
  static int8x16_t load_x(const int8_t* p) {
    if constexpr (kDoubled) return vld1q_s8(p);
    return vcombine_s8(vld1_s8(p), vld1_s8(p));
  }
  // Weights below 128 are the same with a sign.
  template <bool kSigned>
  static Ints dot(Ints sum, Bytes w, int8x16_t x) {
    return vdotq_s32(sum, vreinterpretq_s8_u8(w), x);
  }
  static void add_partials(const Ints (&sums)[kVectors], Rows* rows) {
    *rows = {vpaddq_s32(sums[0], sums[1]), vpaddq_s32(sums[2], sums[3])};
  }
};

// NOLINTEND(llvm-header-guard)
