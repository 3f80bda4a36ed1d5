// Vector operations of Arm's Advanced SIMD for group-inl.h; included inside of a namespace.

// NOLINTBEGIN(llvm-header-guard): included once per file.

// The conversion from integers takes four times as long as an addition of floats on Neoverse-N1. So
// a sum begins with the bits of a float above 2^23, where one is the unit of the last place: added
// integers make it the float that is as much larger.
constexpr int32_t kFirstSum = 0x4b4b4b4b;
constexpr float kFirstFloat = 13323083.0f;
constexpr int32_t kLargestSum = kSubBlock * 128 * 127;
static_assert(kFirstSum - kLargestSum > 0x4b000000 && kFirstSum + kLargestSum < 0x4b800000);

struct ArmVectors {
  static constexpr int kBytes = 16, kVectors = 4;
  static constexpr int64_t kAhead = 576, kLargeAhead = 0;
  using Bytes = uint8x16_t;
  using Ints = int32x4_t;
  using Rows = int32x4x2_t;
  using Floats = float32x4x2_t;

  static Bytes load(const uint8_t* p) { return vld1q_u8(p); }
  static Bytes low_nibbles(Bytes x) { return vandq_u8(x, vdupq_n_u8(0xf)); }
  static Bytes high_nibbles(Bytes x) { return vshrq_n_u8(x, 4); }
  template <int kNibble, int kFrom, int kMask>
  static Bytes join(Bytes both, Bytes bits) {
    if constexpr (kNibble == 0) {
      if constexpr (kFrom > 0) bits = vshrq_n_u8(bits, kFrom);
      return vandq_u8(vsliq_n_u8(both, bits, 4), vdupq_n_u8(kMask | 0xf));
    }
    if constexpr (kFrom < 4) bits = vshlq_n_u8(bits, 4 - kFrom);
    if constexpr (kFrom > 4) bits = vshrq_n_u8(bits, kFrom - 4);
    return vbslq_u8(vdupq_n_u8(kMask), bits, high_nibbles(both));
  }

  // Left alone GCC 12 copies a zero from another register, which takes a vector pipe; movi takes
  // none: tiles are 10% faster.
  static Ints no_ints() {
    Ints zero;
    asm volatile("movi %0.4s, #0" : "=w"(zero));
    return zero;
  }
  // A load: a copy of a register takes a vector pipe.
  static Ints start(const int32_t* p) {
    Ints sums;
    asm volatile("ldr %q0, %1" : "=w"(sums) : "m"(*reinterpret_cast<const int32x4_t*>(p)));
    return sums;
  }
  static Rows no_rows() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
  static Floats no_floats() { return {vdupq_n_f32(0), vdupq_n_f32(0)}; }
  static Floats repeat(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
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
  // c + x by, which is below 2^15.
  static Rows add_multiple(const uint8_t* x, int32_t by, Rows c) {
    const int16x8_t wide = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(x)));
    const auto narrow = static_cast<int16_t>(by);
    return {vmlal_n_s16(c.val[0], vget_low_s16(wide), narrow),
            vmlal_high_n_s16(c.val[1], wide, narrow)};
  }
  static Floats sums_to_floats(Rows x) {
    const float32x4_t first = vdupq_n_f32(kFirstFloat);
    return {vsubq_f32(vreinterpretq_f32_s32(x.val[0]), first),
            vsubq_f32(vreinterpretq_f32_s32(x.val[1]), first)};
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

// One row of activations, doubled: four products to a lane.
struct ArmDot : ArmVectors {
  static constexpr int kXRows = 1, kXBytes = 16;
  static int8x16_t load_x(const int8_t* p) { return vld1q_s8(p); }
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
