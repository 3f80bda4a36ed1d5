// Register tiles on Intel's AMX: bf16 products summed in f32, 16 rows by 16 columns by 32 k in one
// instruction. Built with AMX and AVX-512 and called only where the CPU and the kernel allow it, so
// this file shares no inline function with the rest.
//
// A tile of 32 x 32 has four accumulators of 16 x 16, which leave two tile registers for A and two
// for B: four loads to four products. A panel's rows of pairs are what the instruction takes.

#include "backend/cpu/gemm/gemm.h"

#if defined(__x86_64__) && defined(__linux__) && defined(__AMX_BF16__) && \
    defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <utility>

namespace sluice::impl::cpu::gemm {
namespace {

constexpr int kSide = 16;  // rows and columns of a tile register
constexpr int kStep = 32;  // k of one instruction
constexpr int64_t kMr = 2 * kSide, kNr = 2 * kSide, kKq = 2;
constexpr int64_t kPanelRow = kNr * kKq;  // elements of a panel to kKq of k

// What the CPU is told of its tile registers, as it reads it.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileShapes) == 64);

// Registers 0-3: C, 2 x 2. 4, 5: A. 6, 7: B. The second row of C and A has `kRows` - 16 rows.
template <int kRows>
constexpr TileShapes shapes() {
  constexpr int kFirst = kRows < kSide ? kRows : kSide;
  TileShapes shapes;
  for (int i = 0; i < 8; ++i) {
    const bool second = i == 2 || i == 3 || i == 5;
    shapes.row_bytes[i] = 64;
    shapes.rows[i] = static_cast<uint8_t>(i >= 6 ? kSide : !second ? kFirst : kRows - kFirst);
    if (shapes.rows[i] == 0) shapes.row_bytes[i] = 0;
  }
  return shapes;
}

template <int kRows>
constexpr TileShapes kShapes = shapes<kRows>();

// One step of k: A with a stride in bytes, B a panel's 16 rows of pairs.
template <bool kTwo>
[[gnu::always_inline]] inline void multiply_step(const uint16_t* a, int64_t a_bytes,
                                                 const uint16_t* b) {
  constexpr int64_t kBytes = kPanelRow * 2;
  _tile_loadd(4, a, a_bytes);
  _tile_loadd(6, b, kBytes);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, b + kSide * kKq, kBytes);
  _tile_dpbf16ps(1, 4, 7);
  if constexpr (kTwo) {
    _tile_loadd(5, a + kSide * (a_bytes / 2), a_bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

template <int kRows>
void tile(const TileArgs& args) {
  constexpr bool kTwo = kRows > kSide;
  const auto* a = static_cast<const uint16_t*>(args.a);
  const auto* b = static_cast<const uint16_t*>(args.b);
  const int64_t a_bytes = args.a_stride * 2, c_bytes = args.c_stride * int64_t{sizeof(float)};
  float *c = args.c, *lower = args.c + kSide * args.c_stride;
  if constexpr (kRows < kMr) _tile_loadconfig(&kShapes<kRows>);
  if (args.accumulate) {
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + kSide, c_bytes);
    if constexpr (kTwo) {
      _tile_loadd(2, lower, c_bytes);
      _tile_loadd(3, lower + kSide, c_bytes);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kTwo) {
      _tile_zero(2);
      _tile_zero(3);
    }
  }
  int64_t k = 0;
  for (; k + kStep <= args.k; k += kStep) multiply_step<kTwo>(a + k, a_bytes, b + k * kNr);
  if (const int64_t rest = args.k - k; rest > 0) {
    alignas(64) uint16_t last_a[kRows * kStep] = {};
    alignas(64) uint16_t last_b[kStep * kNr] = {};
    for (int64_t i = 0; i < kRows; ++i)
      std::memcpy(last_a + i * kStep, a + i * args.a_stride + k, static_cast<size_t>(2 * rest));
    std::memcpy(last_b, b + k * kNr, static_cast<size_t>(2 * rest * kNr));
    asm volatile("" ::: "memory");  // GCC's loads of tiles do not say that they read memory
    multiply_step<kTwo>(last_a, 2 * kStep, last_b);
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + kSide, c_bytes);
  if constexpr (kTwo) {
    _tile_stored(2, lower, c_bytes);
    _tile_stored(3, lower + kSide, c_bytes);
  }
  if constexpr (kRows < kMr) _tile_loadconfig(&kShapes<kMr>);
}

// Whole tiles find their shapes loaded; others load their own, and then those of whole ones again.
void begin_tiles() { _tile_loadconfig(&kShapes<kMr>); }
void end_tiles() { _tile_release(); }

// One row and several panels: dot products of pairs, memory-bound.
template <int kPanels>
void row(const RowArgs& args) {
  const auto* a = static_cast<const uint16_t*>(args.a);
  const auto* b = static_cast<const uint16_t*>(args.b);
  __m512 sum[kPanels][2];
  for (auto& panel : sum)
    for (auto& half : panel) half = _mm512_setzero_ps();
  for (int64_t k = 0; k < args.k; k += kKq, b += kPanelRow) {
    int pair = 0;
    std::memcpy(&pair, a + k, sizeof(pair));
    const auto both = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
    for (int p = 0; p < kPanels; ++p)
      for (int half = 0; half < 2; ++half) {
        const __m512i columns =
            _mm512_loadu_si512(b + p * args.panel_stride + half * kPanelRow / 2);
        sum[p][half] = _mm512_dpbf16_ps(sum[p][half], both, reinterpret_cast<__m512bh>(columns));
      }
  }
  for (int p = 0; p < kPanels; ++p)
    for (int half = 0; half < 2; ++half)
      _mm512_storeu_ps(args.c + p * args.c_stride + half * kSide, sum[p][half]);
}

bool cpu_has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if ((d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
  constexpr unsigned kAvx512Bf16 = 1u << 5;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0 || (a & kAvx512Bf16) == 0) return false;
  // The last one for expand_amx.cpp, which works for this kernel alone.
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vbmi");
}

// Linux keeps tile registers of a process only once it has asked (since 5.16). All threads have
// them from then on.
bool kernel_allows_amx() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

template <int... kRows>
const Kernel& make_kernel(std::integer_sequence<int, kRows...>) {
  static void (*const tiles[])(const TileArgs&) = {tile<kRows + 1>...};
  static void (*const rows[])(const RowArgs&) = {row<1>, row<2>, row<3>, row<4>};
  static const Kernel kernel = {.name = "AMX bf16 tiles",
                                .mr = kMr,
                                .nr = kNr,
                                .kq = kKq,
                                .a_dtype = DType::kBF16,
                                .b_dtype = DType::kBF16,
                                .tiles = tiles,
                                .begin = begin_tiles,
                                .end = end_tiles,
                                .rows = rows,
                                .k_step = kStep,
                                .depth = 512,
                                .row_tiles = 1};
  return kernel;
}

}  // namespace

const Kernel* kernel_amx() {
  static const bool has = cpu_has_amx() && kernel_allows_amx();
  return has ? &make_kernel(std::make_integer_sequence<int, kMr>{}) : nullptr;
}

}  // namespace sluice::impl::cpu::gemm

#else

namespace sluice::impl::cpu::gemm {

const Kernel* kernel_amx() { return nullptr; }

}  // namespace sluice::impl::cpu::gemm

#endif
