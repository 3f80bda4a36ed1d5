// Register tiles in portable SIMD, for every instruction set Highway compiles here.

#include "backend/cpu/gemm/gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/gemm/gemm_hwy.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // first: it includes this file once per target
#include <hwy/highway.h>
// clang-format on

// Without it GCC keeps the accumulators in memory, at less than half the speed.
#undef KERNEL_UNROLL
#define KERNEL_UNROLL _Pragma("GCC unroll 16")

HWY_BEFORE_NAMESPACE();
namespace sluice::impl::cpu::gemm::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

const hn::ScalableTag<float> kF;
using Vector = hn::Vec<decltype(kF)>;

// Tile sizes that fill the register file: 24 accumulators of 32 registers, 12 of 16. On Arm the
// others hold a vector of each row of A, and of B one at a time.
#if HWY_ARCH_ARM_A64
constexpr int kRows = 6, kVectors = 4;
#elif HWY_TARGET <= HWY_AVX3
constexpr int kRows = 12, kVectors = 2;
#else
constexpr int kRows = 6, kVectors = 2;
#endif

HWY_INLINE Vector load_b(const float* p) { return hn::LoadU(kF, p); }
HWY_INLINE Vector load_b(const hwy::bfloat16_t* p) {
  return hn::PromoteTo(kF, hn::LoadU(hn::Rebind<hwy::bfloat16_t, decltype(kF)>(), p));
}

#if HWY_ARCH_ARM_A64
constexpr int64_t kLanes = 4;
static_assert(hn::MaxLanes(kF) == kLanes);

// One k: lane kLane of every row of A times the vectors of B. Arm's multiply-add takes a lane as
// its factor; a load that broadcasts would keep the same units busy a second time.
template <int kLane, int kTileRows, typename B>
HWY_INLINE void add_lane(const Vector* rows, const B* b, Vector (*sum)[kVectors]) {
  KERNEL_UNROLL for (int j = 0; j < kVectors; ++j) {
    const Vector column = load_b(b + (kLane * kVectors + j) * kLanes);
    KERNEL_UNROLL for (int i = 0; i < kTileRows; ++i) sum[i][j] =
        hn::MulAdd(hn::Broadcast<kLane>(rows[i]), column, sum[i][j]);
  }
}
#endif

template <int kTileRows, typename B>
HWY_INLINE void tile(const TileArgs& args) {
  const auto n_lanes = static_cast<int64_t>(hn::Lanes(kF));
  const float* a = static_cast<const float*>(args.a);
  const B* b = static_cast<const B*>(args.b);
  Vector sum[kTileRows][kVectors];
  KERNEL_UNROLL for (int i = 0; i < kTileRows; ++i) KERNEL_UNROLL for (int j = 0; j < kVectors; ++j)
      sum[i][j] = hn::Zero(kF);
  int64_t k = 0;
#if HWY_ARCH_ARM_A64
  for (; k + kLanes <= args.k; k += kLanes, b += kLanes * kVectors * kLanes) {
    Vector rows[kTileRows];
    KERNEL_UNROLL for (int i = 0; i < kTileRows; ++i) rows[i] =
        hn::LoadU(kF, a + i * args.a_stride + k);
    add_lane<0, kTileRows>(rows, b, sum);
    add_lane<1, kTileRows>(rows, b, sum);
    add_lane<2, kTileRows>(rows, b, sum);
    add_lane<3, kTileRows>(rows, b, sum);
  }
#endif
  for (; k < args.k; ++k) {
    Vector column[kVectors];
    KERNEL_UNROLL for (int j = 0; j < kVectors; ++j) column[j] = load_b(b + j * n_lanes);
    KERNEL_UNROLL for (int i = 0; i < kTileRows; ++i) {
      const Vector row = hn::Set(kF, a[i * args.a_stride + k]);
      KERNEL_UNROLL for (int j = 0; j < kVectors; ++j) sum[i][j] =
          hn::MulAdd(row, column[j], sum[i][j]);
    }
    b += kVectors * n_lanes;
  }
  KERNEL_UNROLL for (int i = 0; i < kTileRows; ++i)
      KERNEL_UNROLL for (int j = 0; j < kVectors; ++j) {
    float* c = args.c + i * args.c_stride + j * n_lanes;
    const Vector total = sum[i][j];
    hn::StoreU(args.accumulate ? hn::Add(total, hn::LoadU(kF, c)) : total, kF, c);
  }
}

template <int kPanels, typename B>
HWY_INLINE void row(const RowArgs& args) {
  const auto n_lanes = static_cast<int64_t>(hn::Lanes(kF));
  const float* a = static_cast<const float*>(args.a);
  const B* b = static_cast<const B*>(args.b);
  Vector sum[kPanels][kVectors];
  KERNEL_UNROLL for (auto& panel : sum) KERNEL_UNROLL for (auto& lanes : panel) lanes =
      hn::Zero(kF);
  for (int64_t k = 0; k < args.k; ++k, b += kVectors * n_lanes) {
    const Vector x = hn::Set(kF, a[k]);
    KERNEL_UNROLL for (int p = 0; p < kPanels; ++p) {
      KERNEL_UNROLL for (int j = 0; j < kVectors; ++j) sum[p][j] =
          hn::MulAdd(x, load_b(b + p * args.panel_stride + j * n_lanes), sum[p][j]);
    }
  }
  KERNEL_UNROLL for (int p = 0; p < kPanels; ++p) {
    KERNEL_UNROLL for (int j = 0; j < kVectors; ++j)
        hn::StoreU(sum[p][j], kF, args.c + p * args.c_stride + j * n_lanes);
  }
}

// Tables of the functions above, one per height and per number of panels.
template <typename B>
struct Functions {
  template <int kTileRows>
  static void run_tile(const TileArgs& args) {
    tile<kTileRows, B>(args);
  }
  template <int kPanels>
  static void run_row(const RowArgs& args) {
    row<kPanels, B>(args);
  }
  template <int... kIndex>
  static auto tiles(std::integer_sequence<int, kIndex...>) {
    static void (*const table[])(const TileArgs&) = {run_tile<kIndex + 1>...};
    return table;
  }
  template <int... kIndex>
  static auto rows(std::integer_sequence<int, kIndex...>) {
    static void (*const table[])(const RowArgs&) = {run_row<kIndex + 1>...};
    return table;
  }
};

template <typename B>
Kernel kernel(const char* name, DType b_dtype) {
  return {.name = name,
          .mr = kRows,
          .nr = kVectors * static_cast<int64_t>(hn::Lanes(kF)),
          .kq = 1,
          .a_dtype = DType::kF32,
          .b_dtype = b_dtype,
          .tiles = Functions<B>::tiles(std::make_integer_sequence<int, kRows>()),
          .rows = Functions<B>::rows(std::make_integer_sequence<int, Kernel::kRowPanels>())};
}

Kernel kernel_f32() { return kernel<float>("f32", DType::kF32); }
Kernel kernel_f32_bf16() { return kernel<hwy::bfloat16_t>("f32 x bf16", DType::kBF16); }

}  // namespace sluice::impl::cpu::gemm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::impl::cpu::gemm {

HWY_EXPORT(kernel_f32);
HWY_EXPORT(kernel_f32_bf16);

const Kernel& kernel_f32() {
  static const Kernel kernel = HWY_DYNAMIC_DISPATCH(kernel_f32)();
  return kernel;
}

const Kernel& kernel_f32_bf16() {
  static const Kernel kernel = HWY_DYNAMIC_DISPATCH(kernel_f32_bf16)();
  return kernel;
}

}  // namespace sluice::impl::cpu::gemm
#endif
