// Attention of one query to a sequence: how many blocks share a head, and what of the work before
// it its kernel does.

#include <algorithm>

#include "backend/cuda/attention/dense/one.cuh"

namespace sluice::impl::cuda::dense {
namespace {

using namespace one;

// Blocks of a head that are a cluster, where there are so few keys that they have only a few steps.
template <int kLanes>
int cluster_of(const Context& context, int64_t heads, int64_t n_keys) {
  constexpr int64_t kStep = kWarps * kLoads<true> * (32 / kLanes);
  if (!has_dependent_launch(one_query<kLanes, true>) ||
      n_keys > kMostClustered * kClusterSteps * kStep)
    return 1;
  const int64_t room = int64_t{kBlocks<true>} * context.multiprocessors() / heads;
  return static_cast<int>(std::clamp<int64_t>(ceil_div(n_keys, kStep), 1,
                                              std::clamp<int64_t>(room, 1, kMostClustered)));
}

template <int kLanes>
void launch(Context& context, const AttendView& view, const NextToken& next) {
  // As many as there is room for at one time, unless that leaves less than a step to a warp.
  const int64_t heads = view.n_batch * view.n_heads;
  const auto splits_of = [&](int64_t n_keys) {
    const int64_t most = ceil_div(n_keys, kWarps * kLoads<false> * (32 / kLanes));
    return std::clamp<int64_t>(int64_t{kBlocks<false>} * context.multiprocessors() / heads, 1,
                               most);
  };
  // What is recorded must do for every position, and finds its memory there. So its sums may have
  // another order than those of the same step that is not.
  const FirstPosition position = first_position_of(context, view.first_position);
  const int64_t n_keys = position.recorded == nullptr ? view.n_keys() : view.capacity;
  const int64_t most_parts = heads * splits_of(view.capacity);
  HeadParts parts{};
  parts.sums = static_cast<float*>(context.scratch(
      checked_mul(checked_mul(most_parts, view.head_dim + 2), int64_t{sizeof(float)})));
  parts.done = context.zeros(heads);
  const int n_clustered = cluster_of<kLanes>(context, heads, n_keys);
  parts.n_splits = n_clustered > 1 ? n_clustered : static_cast<int32_t>(splits_of(n_keys));
  parts.largest = parts.sums + heads * parts.n_splits * view.head_dim;
  parts.total = parts.largest + heads * parts.n_splits;
  const dim3 grid(static_cast<unsigned>(parts.n_splits), static_cast<unsigned>(view.n_heads),
                  static_cast<unsigned>(view.n_batch));
  launch_programmatic(
      context, "one_query", n_clustered > 1 ? one_query<kLanes, true> : one_query<kLanes, false>,
      {.grid = grid, .threads = kThreads, .cluster = n_clustered}, view, position, parts, next);
}

void launch_for(Context& context, const AttendView& view, const NextToken& next) {
  SLUICE_CHECK(view.n_tokens == 1 && view.group() == 1);
  if (view.head_dim <= 64) return launch<8>(context, view, next);
  if (view.head_dim <= 128) return launch<16>(context, view, next);
  launch<32>(context, view, next);
}

// Whether read_rotated can do it.
bool rotates_eights(const RotaryArgs& rotary) {
  const int64_t half = rotary.cosine.shape()[1];
  const auto aligned = [](const ConstTensor& table) {
    return table.contiguous() && reinterpret_cast<uintptr_t>(table.bytes()) % 16 == 0;
  };
  return rotary.positions.empty() && half % (rotary.style == RotaryStyle::kHalves ? 8 : 4) == 0 &&
         aligned(rotary.cosine) && aligned(rotary.sine);
}

}  // namespace

void attend_one(Context& context, const AttendView& view) { launch_for(context, view, {}); }

bool attend_next(Context& context, const AttendView& view, const RotaryArgs* rotary,
                 const StoreKvArgs& store) {
  const auto fits = [](const ConstTensor& x) {
    return reinterpret_cast<uintptr_t>(x.bytes()) % 16 == 0 && x.row_stride() % 8 == 0;
  };
  if (!fits(store.keys) || !fits(store.values) || (rotary != nullptr && !rotates_eights(*rotary)))
    return false;
  SLUICE_CHECK(store.first_position == view.first_position && store.n_tokens == 1);
  SLUICE_CHECK(store.cache.keys.bytes() == view.keys && store.cache.values.bytes() == view.values);
  NextToken next{.keys = store.keys.bytes(),
                 .values = store.values.bytes(),
                 .key_stride = store.keys.row_stride(),
                 .value_stride = store.values.row_stride(),
                 .key_cache = store.cache.keys.bytes(),
                 .value_cache = store.cache.values.bytes(),
                 .rotation = {}};
  if (rotary != nullptr) {
    // Queries and keys side by side.
    if (rotary->x.bytes() != view.queries || rotary->x.shape()[1] != 2 * view.n_heads) return false;
    SLUICE_CHECK(rotary->first_position == view.first_position && rotary->n_tokens == 1);
    next.rotation = {.cosine = rotary->cosine.data<float>(),
                     .sine = rotary->sine.data<float>(),
                     .half = static_cast<int>(rotary->cosine.shape()[1]),
                     .halves = rotary->style == RotaryStyle::kHalves};
  }
  launch_for(context, view, next);
  return true;
}

}  // namespace sluice::impl::cuda::dense
