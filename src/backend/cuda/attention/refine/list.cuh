// Refined attention: the pages that rows of an item open, as the kernels list them.

#pragma once

#include "backend/cuda/attention/refine/work.cuh"

namespace sluice::impl::cuda::refine {

// Scratch of one thread block, for one item at a time.
struct PageList {
  int32_t* pages;  // (pitch)
  uint4* rows;     // (pitch) 16 bits per warp: which of its rows have opened the page
};

// Scratch of all blocks.
struct ListScratch {
  int32_t* pages;  // (n_blocks, pitch)
  uint4* rows;     // (n_blocks, pitch)
  int64_t pitch;   // pages that an item may open

  __device__ PageList of_block() const {
    return {pages + blockIdx.x * pitch, rows + blockIdx.x * pitch};
  }
};

class ListMemory {
 public:
  ListMemory(const std::shared_ptr<Context>& context, const RefineView& view, int64_t n_blocks)
      : pitch_(view.border(view.first_position + view.n_tokens - 1) / kPage),
        pages_(context, n_blocks * pitch_),
        rows_(context, n_blocks * pitch_) {}
  ListScratch scratch() const { return {pages_.data(), rows_.data(), pitch_}; }

 private:
  int64_t pitch_;
  DeviceArray<int32_t> pages_;
  DeviceArray<uint4> rows_;
};

// One warp appends the pages of a tile that any row has opened and returns how many are listed.
// opened: (kItemWarps, kPages).
template <int kPages>
__device__ int append_pages(const PageList& list, int n_listed,
                            const uint16_t (&opened)[kItemWarps][kPages], int first_page) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int page = lane; page < kPages; page += 32) {
    uint32_t rows[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      rows[i] = opened[2 * i][page] | uint32_t{opened[2 * i + 1][page]} << 16;
    const bool any = (rows[0] | rows[1] | rows[2] | rows[3]) != 0;
    const uint32_t open = __ballot_sync(0xffffffffu, any);
    const int at = n_listed + __popc(open & ((1u << lane) - 1));
    if (any) {
      list.pages[at] = first_page + page;
      list.rows[at] = make_uint4(rows[0], rows[1], rows[2], rows[3]);
    }
    n_listed += __popc(open);
  }
  return n_listed;
}

}  // namespace sluice::impl::cuda::refine
