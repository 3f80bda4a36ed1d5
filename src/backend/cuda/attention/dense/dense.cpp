// Chooses the attention kernel for a call.

#include "backend/cuda/attention/dense/dense.h"

#include <algorithm>

namespace sluice::impl::cuda::dense {
namespace {

constexpr int64_t kMostHeadDim = 256, kMostGroup = 128;
// Up to here a tile of the tensor cores would hold more padding than queries.
constexpr int64_t kFewTokens = 16;

bool aligned(const std::byte* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
}

AttendView checked_view(const AttendDenseArgs& args) {
  const Shape& cache = args.cache.keys.shape();
  const AttendView view{.queries = args.queries.bytes(),
                        .keys = args.cache.keys.bytes(),
                        .values = args.cache.values.bytes(),
                        .out = args.out.bytes(),
                        .query_stride = args.queries.row_stride(),
                        .out_stride = args.out.row_stride(),
                        .n_batch = args.queries.rows() / args.n_tokens,
                        .n_heads = args.queries.shape()[1],
                        .n_kv_heads = cache[1],
                        .capacity = cache[2],
                        .head_dim = cache[3],
                        .n_tokens = args.n_tokens,
                        .first_position = args.first_position,
                        .window = args.window,
                        .causal = args.causal,
                        .scale = args.scale,
                        .cap = args.unscaled_cap()};
  SLUICE_CHECK(args.queries.shape()[2] == view.head_dim &&
               args.out.shape() == args.queries.shape());
  SLUICE_CHECK(args.queries.dtype() == args.cache.keys.dtype() &&
               args.out.dtype() == args.queries.dtype());
  SLUICE_CHECK(view.n_batch * view.n_tokens == args.queries.rows() && view.n_batch <= cache[0] &&
               view.n_keys() <= view.capacity && view.n_heads % view.n_kv_heads == 0);
  check_heads(view.head_dim, view.group());
  return view;
}

// Whether it is work for the tensor cores.
bool fits_tiles(const AttendDenseArgs& args, const AttendView& view) {
  return args.queries.dtype() == DType::kBF16 && view.head_dim % 8 == 0 &&
         aligned(view.queries, view.query_stride) && aligned(view.out, view.out_stride) &&
         aligned(view.keys, 8) && aligned(view.values, 8);
}

}  // namespace

void check_heads(int64_t head_dim, int64_t group) {
  if (head_dim > kMostHeadDim)
    throw Error("heads of " + std::to_string(head_dim) + " are more than the " +
                    std::to_string(kMostHeadDim) + " that attention on this device takes",
                "use --device cpu");
  if (group > kMostGroup)
    throw Error(std::to_string(group) + " query heads to a key head are more than the " +
                    std::to_string(kMostGroup) + " that attention on this device takes",
                "use --device cpu");
}

bool fits_tiles(DType dtype, int64_t head_dim, const ConstTensor& queries, const ConstTensor& out) {
  const auto fits = [](const ConstTensor& x) {
    return aligned(x.bytes(), x.rows() <= 1 ? 0 : x.row_stride());
  };
  return dtype == DType::kBF16 && head_dim % 8 == 0 && head_dim <= kMostHeadDim && fits(queries) &&
         fits(out);
}

void attend_dense(Context& context, const AttendDenseArgs& args) {
  if (args.queries.rows() == 0) return;
  const AttendView view = checked_view(args);
  const bool tiles = fits_tiles(args, view);
  if (context.recording() && !(tiles && view.n_tokens == 1)) throw CannotRecord();
  if (!tiles) return attend_plain(context, args.queries.dtype(), view);
  // Hopper's kernel and the one for a single query take no cap: capped layers are slower there.
  const bool capped = view.cap > 0;
  if (view.n_tokens == 1 && view.group() == 1 && !capped) return attend_one(context, view);
  if (view.n_tokens <= kFewTokens) return attend_split(context, view);
  if (context.compute_capability() == 90 && !capped) return attend_hopper(context, view);
  attend_tiles(context, view);
}

bool store_and_attend(Context& context, const RotaryArgs* rotary, const StoreKvArgs& store,
                      const AttendDenseArgs& args) {
  if (args.n_tokens != 1 || args.queries.rows() == 0) return false;
  const AttendView view = checked_view(args);
  return view.group() == 1 && view.cap == 0 && fits_tiles(args, view) &&
         attend_next(context, view, rotary, store);
}

bool attend_ragged(Context& context, const AttendRaggedArgs& args,
                   std::span<const RaggedSequence> sequences) {
  if (sequences.empty()) return true;
  const auto fits = [&](const RaggedSequence& sequence) {
    const AttendDenseArgs one = args.attend_of(sequence);
    return fits_tiles(one, checked_view(one)) && sequence.cache.keys.shape()[2] <= INT32_MAX;
  };
  if (!std::all_of(sequences.begin(), sequences.end(), fits) ||
      !aligned(args.keys.bytes(), args.keys.row_stride()) ||
      !aligned(args.values.bytes(), args.values.row_stride()))
    return false;
  const int32_t* recorded = context.recorded_positions(args.attend.queries.rows());
  AttendView view = checked_view(args.attend_of(sequences.front()));
  view.queries = args.attend.queries.bytes();
  view.out = args.attend.out.bytes();
  const RaggedRows rows{.keys = args.keys.bytes(),
                        .values = args.values.bytes(),
                        .key_stride = args.keys.row_stride(),
                        .value_stride = args.values.row_stride()};
  while (!sequences.empty()) {
    const auto part = sequences.first(std::min<size_t>(sequences.size(), kMostRagged));
    sequences = sequences.subspan(part.size());
    RaggedView ragged{};
    ragged.recorded = recorded;
    view.first_position = view.capacity = 0;  // the largest
    for (const RaggedSequence& sequence : part) {
      const int at = ragged.n_sequences++;
      SLUICE_CHECK(sequence.n_tokens == 1 && sequence.cache.keys.shape()[1] == view.n_kv_heads);
      ragged.keys[at] = sequence.cache.keys.bytes();
      ragged.values[at] = sequence.cache.values.bytes();
      ragged.capacity[at] = static_cast<int32_t>(sequence.cache.keys.shape()[2]);
      ragged.position[at] = static_cast<int32_t>(sequence.first_position);
      ragged.row[at] = static_cast<int32_t>(sequence.first_row);
      view.first_position = std::max(view.first_position, sequence.first_position);
      view.capacity = std::max(view.capacity, sequence.cache.keys.shape()[2]);
    }
    attend_ragged(context, view, rows, ragged);
  }
  return true;
}

}  // namespace sluice::impl::cuda::dense
