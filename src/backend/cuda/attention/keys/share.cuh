// Where the scattered rows of attention of mode `keys` on Hopper begin, and how the warps that copy
// them share them.

#pragma once

#include "backend/cuda/attention/dense/hopper_tile.cuh"
#include "backend/cuda/attention/keys/rows.cuh"

namespace sluice::impl::cuda::keys::hopper {

using namespace dense;
using namespace dense::hopper;
constexpr int kCopiers = 128;  // threads

// Where the rows of one key head begin: of clusters, running means, tokens of this pass and of
// earlier ones; of keys, then of values. Every copying warp keeps them for itself.
struct Bases {
  const std::byte* of[8];

  __device__ void find(const KeysView& view, int kv_head) {
    int lane = static_cast<int>(threadIdx.x) % 32;
    asm volatile("" : "+r"(lane));  // what follows from it is not to be kept: registers are few
    __syncwarp();                   // all lanes have read those before
    if (lane < 8) {
      const HeadRows rows = head_rows(view, lane >= 4, kv_head, 2);
      const int region = lane % 4;
      of[lane] = region == 0   ? rows.clusters
                 : region == 1 ? rows.means
                 : region == 2 ? rows.recent
                               : rows.old;
    }
    __syncwarp();
  }
};

// Where a row of a list begins, of keys and of values.
struct KeyAddress {
  const std::byte *key, *value;
};
__device__ inline KeyAddress address_of(const KeysView& view, const Bases& bases, int32_t row) {
  const auto bytes = static_cast<uint32_t>(2 * view.heads.head_dim);
  int region = 0, index = row;
  uint32_t key_bytes = bytes, value_bytes = bytes;  // from row to row
  if (row < 0) {
    const int position = (-1 - row) / 2;
    region = 1;
    index = position - static_cast<int>(view.rows.first_mean);
    if (row % 2 == 0) {  // the token itself
      const auto first = static_cast<int>(view.rows.tokens.first);
      const bool recent = position >= first;
      region = recent ? 2 : 3;
      index = position - (recent ? first : static_cast<int>(view.rows.tokens.base));
      if (recent) {
        key_bytes = static_cast<uint32_t>(2 * view.rows.tokens.new_key_stride);
        value_bytes = static_cast<uint32_t>(2 * view.rows.tokens.new_value_stride);
      }
    }
  }
  const auto i = static_cast<uint32_t>(index);
  return {bases.of[region] + uint64_t{i} * key_bytes,
          bases.of[4 + region] + uint64_t{i} * value_bytes};
}

// How kWarps copying warps, side by side, share kCount rows of kD numbers: as many lanes as a row
// has 16-byte chunks copy it, and each of these knows where one of their rows begins. kPanelRows:
// of the panels that the rows go to.
template <int kD, int kCount, int kWarps = kCopiers / 32, int kPanelRows = kCount>
struct RowShare {
  static constexpr int kChunks = kD / 8, kAtOnce = 32 / kChunks;  // rows of a warp at a time
  static constexpr int kStep = kWarps * kAtOnce;                  // rows of all warps
  static constexpr int kPerWarp = kCount / kWarps;
  static constexpr int kUnroll = 8;  // copies that are started one right after the other
  static constexpr uint32_t kAllExist = kPerWarp == 32 ? 0xffffffffu : (1u << kPerWarp) - 1;
  static constexpr int kSteps = kPerWarp / kAtOnce;
  static_assert(kSteps <= kChunks && kSteps % kUnroll == 0);

  // The row that this lane knows, or -1.
  static __device__ int row() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane % kChunks >= kSteps) return -1;
    return lane % kChunks * kStep + warp() * kAtOnce + lane / kChunks;
  }

  // Starts copying them to panels; mine: where the row that this lane knows begins; exist: which of
  // the warp's rows there are.
  static __device__ void copy(unsigned char* panels, const std::byte* mine, uint32_t exist,
                              int head_dim) {
    if (exist == kAllExist && head_dim == kD)
      start<true>(panels, mine, exist, head_dim);
    else
      start<false>(panels, mine, exist, head_dim);
  }

 private:
  static __device__ int warp() { return static_cast<int>(threadIdx.x) / 32 % kWarps; }

  template <bool kWhole>
  static __device__ void start(unsigned char* panels, const std::byte* mine, uint32_t exist,
                               int head_dim) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int chunk = lane % kChunks, of_step = lane / kChunks, first = warp() * kAtOnce + of_step;
    const bool in_head = chunk * 8 < head_dim;
    unsigned char* to = panels + chunk / 8 * (kPanelRows * kRowBytes) + first * kRowBytes;
    const int part = (chunk ^ first) % 8;
    const uint32_t rows = exist >> of_step * kChunks;
#pragma unroll
    for (int step_group = 0; step_group < kSteps; step_group += kUnroll) {
      // All are known before the first is started: a copy holds the registers of its address.
      const std::byte* from[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i)
        from[i] =
            reinterpret_cast<const std::byte*>(__shfl_sync(
                0xffffffffu, reinterpret_cast<unsigned long long>(mine), step_group + i, kChunks)) +
            16 * chunk;
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const int step = (step_group + i) * kStep;
        unsigned char* place = to + step * kRowBytes + (part ^ step % 8) * 16;
        copy_async(place, from[i], kWhole || (in_head && (rows >> (step_group + i) & 1) != 0));
      }
    }
  }
};

}  // namespace sluice::impl::cuda::keys::hopper
