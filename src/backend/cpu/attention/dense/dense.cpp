// Exact attention, docs/algorithm.md section 3, mode `dense`.
//
// Key blocks start at multiples of their size from position 0, so a query's arithmetic does not
// depend on how a prompt is cut into chunks of kMinPackedQueries or more.

#include "backend/cpu/attention/dense/dense.h"

#include <cmath>

#include "backend/cpu/attention/common/packed.h"
#include "backend/cpu/primitives/rows.h"
#include "core/threads.h"

namespace sluice::impl::cpu::dense {
namespace {

template <typename T>
void attend_tiles(const AttendDenseArgs& args) {
  const Shape& cache = args.cache.keys.shape();
  const int64_t n_keys = args.first_position + args.n_tokens;
  const attention::TileShape shape(args.queries.dtype(), cache[3]);
  const auto rows_of = [&](int64_t source) {
    const int64_t offset = source * cache[2] * cache[3];
    return attention::HeadRows<T>{args.cache.keys.data<T>() + offset,
                                  args.cache.values.data<T>() + offset};
  };
  const auto visit = [&](attention::QueryTile& tile, int64_t first, int64_t n,
                         attention::Panels panels) {
    const int64_t position = args.first_position + first;
    const int64_t end = args.causal ? position + n : n_keys;
    const int64_t begin = args.window > 0 ? std::max<int64_t>(0, position + 1 - args.window) : 0;
    for (int64_t block = begin / shape.block_keys; block * shape.block_keys < end; ++block) {
      const int64_t first_key = block * shape.block_keys;
      tile.visit(panels.from(shape, block),
                 {.n_keys = shape.block_keys,
                  .begin = args.window > 0 ? position + 1 - args.window - first_key : 0,
                  .end = (args.causal ? position + 1 : n_keys) - first_key,
                  .begin_step = args.window > 0 ? 1 : 0,
                  .end_step = args.causal ? 1 : 0});
    }
  };
  attention::attend_packed<T>({.queries = args.queries,
                               .n_batch = cache[0],
                               .n_kv_heads = cache[1],
                               .n_keys = n_keys,
                               .scale = args.scale,
                               .cap = args.unscaled_cap(),
                               .out = args.out},
                              shape, rows_of, visit);
}

// Decoding, and prompts of a few tokens: row by row, the query heads of a group one after another
// over the same keys.
template <typename T>
void attend_rows(const AttendDenseArgs& args) {
  const Shape& cache = args.cache.keys.shape();
  const int64_t n_kv_heads = cache[1], capacity = cache[2], head_dim = cache[3];
  const int64_t n_heads = args.queries.shape()[1], group = n_heads / n_kv_heads;
  parallel_each(args.queries.rows() * n_kv_heads, [&](int64_t item) {
    thread_local std::vector<float> scores, query, sums;
    const int64_t row = item / n_kv_heads, kv_head = item % n_kv_heads;
    const int64_t position = args.first_position + row % args.n_tokens;
    const int64_t end = args.causal ? position + 1 : args.first_position + args.n_tokens;
    const int64_t begin = args.window > 0 ? std::max<int64_t>(0, position + 1 - args.window) : 0;
    const int64_t offset =
        ((row / args.n_tokens * n_kv_heads + kv_head) * capacity + begin) * head_dim;
    const T* keys = args.cache.keys.data<T>() + offset;
    const T* values = args.cache.values.data<T>() + offset;
    scores.resize(static_cast<size_t>(end - begin));
    query.resize(static_cast<size_t>(head_dim));
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const T* q = args.queries.row<T>(row) + head * head_dim;
      std::transform(q, q + head_dim, query.begin(), [](T x) { return to_float(x); });
      primitives::dot_rows(query.data(), keys, head_dim, end - begin, head_dim, scores.data());
      if (args.cap > 0) primitives::soft_cap(args.unscaled_cap(), end - begin, scores.data());
      primitives::SoftmaxState state{-INFINITY, 0.0f};
      primitives::softmax_step(args.scale, end - begin, scores.data(), state);
      sums.assign(static_cast<size_t>(head_dim), 0.0f);
      primitives::mix_rows(scores.data(), values, head_dim, end - begin, head_dim, sums.data());
      primitives::scale(1.0f / state.total, head_dim, sums.data());
      std::transform(sums.begin(), sums.end(), args.out.row<T>(row) + head * head_dim,
                     [](float x) { return from_float<T>(x); });
    }
  });
}

template <typename T>
void attend(const AttendDenseArgs& args) {
  if (args.n_tokens < attention::kMinPackedQueries)
    attend_rows<T>(args);
  else
    attend_tiles<T>(args);
}

}  // namespace

void attend(const AttendDenseArgs& args) {
  const Shape& cache = args.cache.keys.shape();
  SLUICE_CHECK(args.queries.shape()[2] == cache[3] && args.queries.shape()[1] % cache[1] == 0);
  SLUICE_CHECK(args.first_position + args.n_tokens <= cache[2]);
  SLUICE_CHECK(args.queries.rows() == cache[0] * args.n_tokens);
  if (args.queries.dtype() == DType::kBF16)
    attend<BFloat16>(args);
  else
    attend<float>(args);
}

}  // namespace sluice::impl::cpu::dense
