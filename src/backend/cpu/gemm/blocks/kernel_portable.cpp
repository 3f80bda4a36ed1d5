// Blocks in plain loops, for CPUs without the instructions of the other files.

#include <array>
#include <cstring>
#include <utility>

#include "backend/cpu/gemm/blocks/kernel.h"
#include "backend/cpu/gemm/blocks/layout.h"

namespace sluice::impl::cpu::gemm {
namespace {

#include "backend/cpu/gemm/blocks/group-inl.h"

struct PlainVectors {
  static constexpr int kBytes = 16, kVectors = 4, kXRows = 1, kXBytes = 8;
  static constexpr int64_t kAhead = 0, kLargeAhead = 0;
  using Bytes = std::array<uint8_t, 16>;
  using Ints = std::array<int32_t, 2>;  // of the two rows
  using Rows = std::array<int32_t, 8>;
  using Floats = std::array<float, 8>;

  template <typename To, typename F>
  static To each(F&& f) {
    To out;
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<typename To::value_type>(f(i));
    return out;
  }

  static Bytes load(const uint8_t* p) {
    return each<Bytes>([p](size_t i) { return p[i]; });
  }
  static Bytes low_nibbles(const Bytes& x) {
    return each<Bytes>([&](size_t i) { return x[i] & 0xf; });
  }
  static Bytes high_nibbles(const Bytes& x) {
    return each<Bytes>([&](size_t i) { return x[i] >> 4; });
  }
  template <int kNibble, int kFrom, int kMask>
  static Bytes join(const Bytes& both, const Bytes& bits) {
    return each<Bytes>(
        [&](size_t i) { return (both[i] >> 4 * kNibble & 0xf) | (bits[i] << 4 >> kFrom & kMask); });
  }

  static const int8_t* load_x(const int8_t* p) { return p; }
  template <bool kSigned>
  static Ints dot(Ints sums, const Bytes& w, const int8_t* x) {
    for (size_t i = 0; i < w.size(); ++i)
      sums[i / 8] += (kSigned ? static_cast<int8_t>(w[i]) : int{w[i]}) * x[i % 8];
    return sums;
  }
  static void add_partials(const Ints (&sums)[kVectors], Rows* rows) {
    *rows = each<Rows>([&](size_t i) { return sums[i / 2][i % 2]; });
  }

  static Ints no_ints() { return {}; }
  static Ints start(const int32_t* p) { return {*p, *p}; }
  static Rows no_rows() { return {}; }
  static Floats no_floats() { return {}; }
  static Floats repeat(float x) {
    return each<Floats>([x](size_t) { return x; });
  }
  static Rows add_multiple(const uint8_t* x, int32_t by, const Rows& c) {
    return each<Rows>([&](size_t i) { return c[i] + x[i] * by; });
  }
  static Rows multiply_add(const Rows& a, const Rows& b, const Rows& c) {
    return each<Rows>([&](size_t i) { return a[i] * b[i] + c[i]; });
  }
  template <bool kSigned>
  static Rows widen(const uint8_t* p) {
    return each<Rows>([p](size_t i) { return kSigned ? static_cast<int8_t>(p[i]) : int{p[i]}; });
  }
  static Floats sums_to_floats(const Rows& x) { return to_floats(x); }
  static Floats to_floats(const Rows& x) {
    return each<Floats>([&](size_t i) { return static_cast<float>(x[i]); });
  }
  static Floats scaled(const Floats& x, float by) {
    return each<Floats>([&](size_t i) { return x[i] * by; });
  }
  static Floats fma(const Floats& a, const Floats& b, const Floats& c) {
    return each<Floats>([&](size_t i) { return a[i] * b[i] + c[i]; });
  }
  static Floats load_halves(const uint8_t* p) {
    return each<Floats>([p](size_t i) {
      uint16_t bits = 0;
      std::memcpy(&bits, p + 2 * i, sizeof(bits));
      return half_to_float(bits);
    });
  }
  static void store(const Floats& x, float* to) { std::memcpy(to, x.data(), sizeof(x)); }
};

GroupFunction group(DType type, int64_t, int64_t groups) {
  return groups == 2 ? group_function_of<PlainVectors, 1, 2>(type)
                     : group_function_of<PlainVectors, 1, 1>(type);
}

}  // namespace

const BlockKernel* block_kernel_portable() {
  static const BlockKernel kernel = {"plain loops over blocks", XOrder::kPlain, 1, 0, 2, group};
  return &kernel;
}

}  // namespace sluice::impl::cpu::gemm
