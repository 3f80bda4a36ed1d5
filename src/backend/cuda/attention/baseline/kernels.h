// The steps of a pass: which pages every query reads, then attention to them.

#pragma once

#include "backend/baseline.h"
#include "backend/cuda/runtime/device.h"

namespace sluice::impl::cuda::baseline {

inline constexpr int kPage = static_cast<int>(kBaselinePage);
inline constexpr int kBlock = static_cast<int>(kBaselineBlock);
inline constexpr int64_t kNoWindow = int64_t{1} << 62;

// One pass. The cache has its keys and values already.
struct PassView {
  const std::byte* queries;
  std::byte* out;
  int64_t query_stride, out_stride;  // of rows, in elements
  const std::byte *keys, *values;    // (n_kv_heads, capacity, head_dim)
  bool bf16;                         // all of these; else f32
  int64_t n_heads, n_kv_heads, head_dim, capacity;
  int64_t first, n_tokens;  // positions of the queries
  float scale;
  int64_t window;              // a query reads this many last keys of its pages, and the sinks
  int64_t n_words;             // a bit for each page that any query sees
  uint32_t* reads;             // (n_tokens, n_heads, n_words): pages that a query reads
  unsigned long long* n_read;  // keys

  __host__ __device__ int64_t kv_head(int64_t head) const { return head / (n_heads / n_kv_heads); }
  __host__ __device__ int64_t end() const { return first + n_tokens; }
};

// Of the keys of each page, (n_kv_heads, n_pages, head_dim).
struct PageBounds {
  float *smallest, *largest;
  int64_t n_pages;
};
// Of the keys of each block, (n_kv_heads, n_blocks, head_dim).
struct BlockMeans {
  float* keys;
  int64_t n_blocks;
};

void choose_window(const Context& context, const PassView& pass);
// Bounds of the pages that the pass completes.
void bound_pages(const Context& context, const PassView& pass, const PageBounds& bounds);
void choose_quest(Context& context, const PassView& pass, const PageBounds& bounds,
                  int64_t n_pages_read);
// Means of the blocks that the pass adds to.
void mean_blocks(const Context& context, const PassView& pass, const BlockMeans& means);
void choose_pooled(const Context& context, const PassView& pass, const BlockMeans& means,
                   double keep);
void choose_oracle(const Context& context, const PassView& pass, double keep);

void attend(const Context& context, const PassView& pass);

}  // namespace sluice::impl::cuda::baseline
