// The register-tile kernels under our own matrix products (linears where oneDNN is not used, and
// attention everywhere): C (mr x nr) += A (mr x k) B (k x nr).
//
// B comes in panels of nr columns: element (k, n) of a panel stands at
// ((k / kq) * nr + n) * kq + k % kq, zero-padded to a multiple of kq. A is row-major with a
// stride, in a_dtype, readable up to a multiple of kq (the padding multiplies zeros of B, so it
// must be finite). A kernel's tile is the unit that its accumulators hold in registers.

#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace sluice::impl::cpu::gemm {

struct TileArgs {
  const void* a;     // (rows, k) a_dtype
  int64_t a_stride;  // elements
  const void* b;     // one panel
  int64_t k;         // multiple of kq
  float* c;          // (rows, nr)
  int64_t c_stride;
  bool accumulate;  // add to c instead of replacing it
};

// One row over several panels at once. A core draws more from memory in several streams than in
// one, and with one row nothing else counts; so panels far apart, each followed by its
// neighbours, make streams of their own.
struct RowArgs {
  const void* a;         // (k) a_dtype
  const void* b;         // first panel
  int64_t panel_stride;  // elements from one panel to the next
  int64_t k;
  float* c;          // (nr) of the first panel
  int64_t c_stride;  // from one panel's results to the next's
};

struct Kernel {
  static constexpr int64_t kRowPanels = 4;

  const char* name;
  int64_t mr, nr, kq;
  DType a_dtype, b_dtype;
  // tiles[rows - 1] computes a tile of `rows` rows, 1 <= rows <= mr.
  void (*const* tiles)(const TileArgs& args);
  // A thread calls these before and after its calls of `tiles`, where they are there. They do not
  // nest: in between it multiplies nowhere else.
  void (*begin)() = nullptr;
  void (*end)() = nullptr;
  // rows[n - 1] takes n panels, 1 <= n <= kRowPanels.
  void (*const* rows)(const RowArgs& args);
  // Products of so many k are added to each other before their sum is added to C. So zeros of A
  // that fill whole steps do not change C, to the bit.
  int64_t k_step = 1;
  // About so much k of a panel is multiplied at a time, with so many tiles of rows: what of both
  // fits stays in the first cache while many rows are multiplied. PanelLinear may add a rest.
  int64_t depth = 512;
  int64_t row_tiles = 2;

  int64_t padded_k(int64_t k) const { return (k + kq - 1) / kq * kq; }
  int64_t panels(int64_t n) const { return (n + nr - 1) / nr; }
  // Elements of one panel of depth k.
  int64_t panel_elements(int64_t k) const { return padded_k(k) * nr; }
};

// begin and end of a thread's calls of a kernel's tiles.
class UsedKernel {
 public:
  explicit UsedKernel(const Kernel& kernel) : kernel_(kernel) {
    if (kernel_.begin != nullptr) kernel_.begin();
  }
  ~UsedKernel() {
    if (kernel_.end != nullptr) kernel_.end();
  }
  UsedKernel(const UsedKernel&) = delete;
  UsedKernel& operator=(const UsedKernel&) = delete;

 private:
  const Kernel& kernel_;
};

// The fastest kernel of this CPU for activations and weights of a compute dtype.
const Kernel& kernel_for(DType dtype);

// All kernels that run here, for tests and benchmarks.
const Kernel& kernel_f32();       // A and B f32, portable SIMD
const Kernel& kernel_f32_bf16();  // A f32, B bf16, portable SIMD
const Kernel* kernel_bfmmla();    // A and B bf16, Arm BF16 matrix instructions, or nullptr
const Kernel* kernel_amx();       // A and B bf16, Intel's AMX, or nullptr

// Packs a panel from n <= nr rows of src (B transposed), columns [0, k).
template <typename Source>
void pack_panel_rows(const Kernel& kernel, const Source* src, int64_t stride, int64_t n, int64_t k,
                     void* panel);

}  // namespace sluice::impl::cpu::gemm
