// Refined attention of one query: chooses how rows are read and how many thread blocks share a
// head. docs/algorithm.md, section 7.

#include <algorithm>

#include "backend/cuda/attention/refine/one_attend.cuh"
#include "backend/cuda/attention/refine/one_score.cuh"
#include "core/shape.h"

namespace sluice::impl::cuda::refine {
namespace {

using namespace decode;

constexpr int64_t kMostSplits = 64;  // the last block of a head joins them
// Values of means, of all kv heads, that stay in L2 from one kernel to the next.
constexpr int64_t kKeptBytes = int64_t{16} << 20;

bool aligned(const std::byte* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// Whether every row begins at 16 bytes.
bool has_vectors(const RefineView& view, const NextRows& next) {
  const CacheView& cache = view.cache;
  return view.head_dim % 8 == 0 && aligned(view.queries) && aligned(next.keys) &&
         aligned(cache.keys) && aligned(cache.values) && aligned(cache.mean_keys) &&
         aligned(cache.mean_values);
}

template <typename W>
void launch(Context& context, const RefineView& view, const NextRows& next) {
  const FirstPosition position = first_position_of(context, view.first_position);
  const int64_t group = view.n_heads / view.n_kv_heads, n_chunks = ceil_div(group, W::kHeads);
  const int64_t blocks = view.n_kv_heads * n_chunks;
  // As many as there is room for at one time, unless that leaves less than a page to a warp.
  const auto splits_of = [&](int64_t n_tokens) {
    const int64_t room = int64_t{W::kBlocks} * context.multiprocessors() / blocks;
    const int64_t most = std::min(kMostSplits, ceil_div(n_tokens, int64_t{kWarps} * kPage));
    return std::clamp<int64_t>(room, 1, most);
  };
  // What is recorded must do for every position, and finds its memory there. So its sums may have
  // another order than those of the same step that is not.
  const int64_t capacity = view.cache.capacity;
  const int64_t n_tokens = position.recorded == nullptr ? view.first_position + 1 : capacity;
  const int64_t n_splits = splits_of(n_tokens), n_parts = view.n_heads * n_splits;
  const int64_t most_parts = view.n_heads * splits_of(capacity);
  const int64_t n_scores = checked_mul(view.n_heads, view.cache.n_pages);
  const int64_t n_floats = 2 * n_scores + checked_mul(most_parts, view.head_dim + 4);
  auto* memory =
      static_cast<float*>(context.scratch(checked_mul(n_floats, int64_t{sizeof(float)})));
  Step step{};
  step.masses = reinterpret_cast<float2*>(memory);
  step.scores = step.masses + n_parts;
  step.parts.sums = memory + 2 * (n_parts + n_scores);
  step.parts.largest = step.parts.sums + n_parts * view.head_dim;
  step.parts.total = step.parts.largest + n_parts;
  step.parts.done = context.zeros(blocks);
  step.parts.n_splits = static_cast<int32_t>(n_splits);
  step.group = static_cast<int>(group);
  step.n_chunks = static_cast<int>(n_chunks);
  const int64_t row_bytes = view.head_dim * static_cast<int64_t>(sizeof(typename W::Element));
  step.most_prefetched = static_cast<int>(kKeptBytes / (view.n_kv_heads * row_bytes));
  const dim3 grid(static_cast<unsigned>(n_splits), static_cast<unsigned>(blocks));
  launch_programmatic(context, "refine score", score<W>, grid, kThreads, view, position, next,
                      step);
  launch_programmatic(context, "refine attend", attend<W>, grid, kThreads, view, position, step);
}

template <typename Element, int kLanes>
void launch_group(Context& context, const RefineView& view, const NextRows& next) {
  if (view.n_heads == view.n_kv_heads)
    return launch<WarpTraits<Element, kLanes, 1, true>>(context, view, next);
  launch<WarpTraits<Element, kLanes, 4, true>>(context, view, next);
}

template <typename Element>
void launch_for(Context& context, const RefineView& view, const NextRows& next) {
  if (!has_vectors(view, next))
    return launch<WarpTraits<Element, 32, 1, false>>(context, view, next);
  if (view.head_dim <= 64) return launch_group<Element, 8>(context, view, next);
  if (view.head_dim <= 128) return launch_group<Element, 16>(context, view, next);
  launch_group<Element, 32>(context, view, next);
}

}  // namespace

void attend_one(const std::shared_ptr<Context>& context, const RefineView& view, DType dtype,
                const std::byte* keys, const std::byte* values) {
  SLUICE_CHECK(view.n_tokens == 1 && view.head_dim <= 256);
  SLUICE_CHECK(view.n_heads % view.n_kv_heads == 0);
  SLUICE_CHECK(view.sinks % kPage == 0);
  // Places in a head's rows are 32-bit numbers.
  SLUICE_CHECK(view.cache.capacity <= INT32_MAX / view.head_dim);
  const NextRows next{keys, values};
  if (dtype == DType::kBF16) return launch_for<__nv_bfloat16>(*context, view, next);
  launch_for<float>(*context, view, next);
}

}  // namespace sluice::impl::cuda::refine
