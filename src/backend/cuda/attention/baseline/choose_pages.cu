// Pages that every query chooses for itself: window and quest.

#include "backend/cuda/attention/baseline/tile.cuh"

namespace sluice::impl::cuda::baseline {
namespace {

__device__ uint32_t* words_of(const PassView& pass) {
  return pass.reads + (int64_t{blockIdx.x} * pass.n_heads + blockIdx.y) * pass.n_words;
}

// A block for each query and head.
__global__ void mark_window(const __grid_constant__ PassView pass) {
  const int64_t t = pass.first + blockIdx.x;
  const int64_t begin = max(int64_t{0}, t + 1 - pass.window) / kPage;
  for (int64_t word = threadIdx.x; word < pass.n_words; word += blockDim.x) {
    uint32_t bits = 0;
    for (int i = 0; i < 32; ++i) {
      const int64_t page = word * 32 + i;
      if (page == 0 || (page >= begin && page <= t / kPage)) bits |= 1u << i;
    }
    words_of(pass)[word] = bits;
  }
}

// A block for each page, from the first that the pass completes on, and key/value head.
__global__ void bound_page(const __grid_constant__ PassView pass, const PageBounds bounds) {
  const int64_t page = pass.first / kPage + blockIdx.x, kv_head = blockIdx.y;
  for (int64_t d = threadIdx.x; d < pass.head_dim; d += blockDim.x) {
    float smallest = cached(pass, pass.keys, kv_head, page * kPage, d), largest = smallest;
    for (int i = 1; i < kPage; ++i) {
      const float x = cached(pass, pass.keys, kv_head, page * kPage + i, d);
      smallest = fminf(smallest, x);
      largest = fmaxf(largest, x);
    }
    const int64_t at = (kv_head * bounds.n_pages + page) * pass.head_dim + d;
    bounds.smallest[at] = smallest;
    bounds.largest[at] = largest;
  }
}

// Unsigned numbers in the order of the floats. What is no number counts as -inf.
__device__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(isnan(x) ? -INFINITY : x);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

// A block for each query and head. bounds_of: (n_tokens, n_heads, 32 n_words), scratch.
__global__ void choose_highest(const __grid_constant__ PassView pass, const PageBounds bounds,
                               int64_t n_pages_read, uint32_t* bounds_of) {
  extern __shared__ float query[];  // (head_dim)
  const int64_t row = blockIdx.x, head = blockIdx.y, kv_head = pass.kv_head(head);
  const int64_t own = (pass.first + row) / kPage;
  uint32_t* const words = words_of(pass);
  uint32_t* const of = bounds_of + (row * pass.n_heads + head) * pass.n_words * 32;
  const bool all = own < n_pages_read;
  for (int64_t d = threadIdx.x; d < pass.head_dim; d += blockDim.x)
    query[d] = query_element(pass, row, head, d);
  __syncthreads();
  for (int64_t page = 1 + threadIdx.x; page < own && !all; page += blockDim.x) {
    const int64_t at = (kv_head * bounds.n_pages + page) * pass.head_dim;
    float sum = 0;
    for (int64_t d = 0; d < pass.head_dim; ++d)
      sum += query[d] * (query[d] > 0 ? bounds.largest[at + d] : bounds.smallest[at + d]);
    of[page] = ordered(sum);
  }
  __syncthreads();
  // The n-th highest bound: the largest number that n or more bounds reach, bit by bit.
  const int64_t n = n_pages_read - 2;
  uint32_t least = 0;
  int64_t n_above = 0;  // pages of a higher bound
  for (int bit = 31; bit >= 0 && !all; --bit) {
    const uint32_t tried = least | 1u << bit;
    int64_t count = 0;
    for (int64_t first = 1; first < own; first += blockDim.x) {
      const int64_t page = first + threadIdx.x;
      count += __syncthreads_count(page < own && of[page] >= tried);
    }
    if (count >= n)
      least = tried;
    else
      n_above = count;
  }
  if (threadIdx.x != 0) return;
  // Of equal bounds the earlier.
  int64_t n_equal = all ? 0 : n - n_above;
  for (int64_t word = 0; word < pass.n_words; ++word) {
    uint32_t bits = 0;
    for (int i = 0; i < 32; ++i) {
      const int64_t page = word * 32 + i;
      if (page > own) break;
      const bool read = all || page == 0 || page == own || of[page] > least ||
                        (of[page] == least && n_equal-- > 0);
      if (read) bits |= 1u << i;
    }
    words[word] = bits;
  }
}

}  // namespace

void choose_window(const Context& context, const PassView& pass) {
  const dim3 grid(static_cast<unsigned>(pass.n_tokens), static_cast<unsigned>(pass.n_heads));
  mark_window<<<grid, 32, 0, context.stream()>>>(pass);
  check_launch("pages of a window");
}

void bound_pages(const Context& context, const PassView& pass, const PageBounds& bounds) {
  const int64_t n = pass.end() / kPage - pass.first / kPage;
  if (n == 0) return;
  const dim3 grid(static_cast<unsigned>(n), static_cast<unsigned>(pass.n_kv_heads));
  bound_page<<<grid, 64, 0, context.stream()>>>(pass, bounds);
  check_launch("bounds of pages");
}

void choose_quest(Context& context, const PassView& pass, const PageBounds& bounds,
                  int64_t n_pages_read) {
  const dim3 grid(static_cast<unsigned>(pass.n_tokens), static_cast<unsigned>(pass.n_heads));
  auto* scratch = static_cast<uint32_t*>(context.scratch(
      pass.n_tokens * pass.n_heads * pass.n_words * 32 * int64_t{sizeof(uint32_t)}));
  const auto bytes = static_cast<size_t>(pass.head_dim) * sizeof(float);
  choose_highest<<<grid, 128, bytes, context.stream()>>>(pass, bounds, n_pages_read, scratch);
  check_launch("pages of the highest bounds");
}

}  // namespace sluice::impl::cuda::baseline
