// Dense attention against the reference, and the promise that the future does not touch the past.

#include "parity/attend_bounds.h"

namespace sluice::impl::test {
namespace {

// Row by row below 8 queries; from there on in tiles of up to 128 queries and blocks of about 128
// keys, with AMX 256: sizes at, below and above each of these.
const AttendCase kCases[] = {
    {.n_tokens = 1, .head_dim = 64},
    {.n_tokens = 1, .head_dim = 1, .first_position = 6},
    {.n_tokens = 2, .head_dim = 16, .n_heads = 4, .n_kv_heads = 1},
    {.n_tokens = 7, .head_dim = 80, .n_batch = 3},
    {.n_tokens = 7, .head_dim = 128, .first_position = 300, .n_heads = 6, .n_kv_heads = 2},
    {.n_tokens = 7, .head_dim = 96, .causal = false, .pad = 3},
    {.n_tokens = 8, .head_dim = 1, .n_batch = 2},
    {.n_tokens = 8, .head_dim = 16, .first_position = 120, .n_heads = 1, .n_kv_heads = 1},
    {.n_tokens = 9, .head_dim = 3, .causal = false},
    {.n_tokens = 37, .head_dim = 80, .n_heads = 4, .n_kv_heads = 2, .pad = 5},
    {.n_tokens = 37, .head_dim = 96, .n_batch = 2, .causal = false},
    {.n_tokens = 37, .head_dim = 17, .first_position = 131},
    {.n_tokens = 65, .head_dim = 64, .first_position = 1, .n_batch = 2},
    {.n_tokens = 129, .head_dim = 64, .size = 30},
    {.n_tokens = 129, .head_dim = 256, .n_heads = 1, .n_kv_heads = 1},
    {.n_tokens = 129, .head_dim = 128, .n_heads = 1, .n_kv_heads = 1, .causal = false},
    {.n_tokens = 300, .head_dim = 64, .n_heads = 3, .n_kv_heads = 1},
    {.n_tokens = 300, .head_dim = 16, .causal = false},
    {.n_tokens = 45, .head_dim = 64, .first_position = 255, .size = 10},
    // Few queries and many keys, in stretches: groups of every size that a kernel has, and larger
    // ones.
    {.n_tokens = 1, .head_dim = 64, .first_position = 1500, .n_heads = 9, .n_kv_heads = 3},
    {.n_tokens = 1, .head_dim = 16, .first_position = 512, .n_heads = 9, .n_kv_heads = 1},
    {.n_tokens = 1, .head_dim = 128, .first_position = 511, .n_heads = 10, .n_kv_heads = 2},
    {.n_tokens = 3, .head_dim = 80, .first_position = 1022, .n_heads = 8, .n_kv_heads = 1},
    {.n_tokens = 2, .head_dim = 24, .first_position = 700, .n_heads = 7, .n_kv_heads = 1},
    {.n_tokens = 3, .head_dim = 32, .first_position = 1022, .n_batch = 2, .window = 700},
    {.n_tokens = 7, .head_dim = 48, .first_position = 600, .n_heads = 22, .n_kv_heads = 2},
    // Sliding windows: one position, within a tile, across tiles, wider than everything.
    {.n_tokens = 1, .head_dim = 64, .first_position = 200, .window = 17},
    {.n_tokens = 7, .head_dim = 16, .first_position = 3, .window = 1},
    {.n_tokens = 37, .head_dim = 64, .window = 1},
    {.n_tokens = 129, .head_dim = 80, .n_heads = 4, .n_kv_heads = 2, .window = 5},
    {.n_tokens = 300, .head_dim = 16, .n_batch = 2, .window = 128},
    {.n_tokens = 300, .head_dim = 32, .window = 129},
    {.n_tokens = 70, .head_dim = 64, .first_position = 230, .window = 33},
    {.n_tokens = 37, .head_dim = 16, .window = 1000},
    {.n_tokens = 37, .head_dim = 16, .causal = false, .window = 9},
    {.n_tokens = 40, .head_dim = 17, .first_position = 700, .window = 300, .cap = 2},
    {.n_tokens = 140, .head_dim = 64, .first_position = 500, .n_heads = 3, .n_kv_heads = 1},
    // Capped scores: most of them far below the cap, near it, far above it.
    {.n_tokens = 1, .head_dim = 64, .first_position = 200, .cap = 50},
    {.n_tokens = 1, .head_dim = 256, .first_position = 70, .n_heads = 4, .size = 5, .cap = 2},
    {.n_tokens = 7, .head_dim = 17, .first_position = 40, .n_batch = 2, .size = 9, .cap = 1},
    {.n_tokens = 16, .head_dim = 128, .first_position = 300, .window = 33, .size = 4, .cap = 3},
    {.n_tokens = 37, .head_dim = 96, .n_heads = 4, .causal = false, .pad = 8, .cap = 0.5f},
    {.n_tokens = 129, .head_dim = 256, .n_heads = 4, .window = 50, .size = 20, .cap = 5},
    {.n_tokens = 300, .head_dim = 64, .n_batch = 2, .size = 3, .cap = 2},
};

TEST_P(EveryBackend, DenseAttentionAgreesWithTheReference) {
  for (const AttendCase& c : kCases) {
    SCOPED_TRACE(testing::PrintToString(c));
    const AttendInputs in(c, dtype());
    const auto expected = attend(*reference, DType::kF32, c, in);
    EXPECT_CLOSE(attend(*backend, dtype(), c, in), expected,
                 attend_bounds(*reference, dtype(), c, in, expected));
  }
}

TEST_P(EveryBackend, ACapChangesTheAnswer) {
  for (const int64_t n : {1, 7, 37}) {
    AttendCase c{.n_tokens = n, .head_dim = 64, .first_position = 90, .size = 4};
    const AttendInputs in(c, dtype());
    const auto plain = attend(*backend, dtype(), c, in);
    c.cap = 1;
    EXPECT_GT(relative_distance(attend(*backend, dtype(), c, in), plain), 0.1) << n;
  }
}

// Sequences of a ragged batch, which share heads and window.
const std::vector<AttendCase> kRagged[] = {
    {{.n_tokens = 1, .head_dim = 64},
     {.n_tokens = 1, .head_dim = 64, .first_position = 700, .room = 0},
     {.n_tokens = 1, .head_dim = 64, .first_position = 63, .room = 900},
     {.n_tokens = 1, .head_dim = 64, .first_position = 64}},
    {{.n_tokens = 37, .head_dim = 128, .n_heads = 6, .n_kv_heads = 2},
     {.n_tokens = 1, .head_dim = 128, .first_position = 300, .n_heads = 6, .n_kv_heads = 2},
     {.n_tokens = 5, .head_dim = 128, .first_position = 20, .n_heads = 6, .n_kv_heads = 2},
     {.n_tokens = 1, .head_dim = 128, .n_heads = 6, .n_kv_heads = 2, .room = 40}},
    {{.n_tokens = 1, .head_dim = 80, .first_position = 200, .n_heads = 4, .window = 33},
     {.n_tokens = 9, .head_dim = 80, .first_position = 200, .n_heads = 4, .window = 33},
     {.n_tokens = 1, .head_dim = 80, .first_position = 7, .n_heads = 4, .window = 33}},
    // More than a tile of query heads; heads that no matrix instruction takes.
    {{.n_tokens = 1, .head_dim = 16, .first_position = 90, .n_heads = 20, .n_kv_heads = 1},
     {.n_tokens = 1, .head_dim = 16, .first_position = 2, .n_heads = 20, .n_kv_heads = 1}},
    {{.n_tokens = 1, .head_dim = 3, .first_position = 4}, {.n_tokens = 2, .head_dim = 3}},
    // More sequences than a kernel takes at one time.
    std::vector<AttendCase>(70, {.n_tokens = 1, .head_dim = 256, .first_position = 3}),
};

// Rows of positions from the first new one on in a cache of one sequence, (n_tokens, n_kv_heads,
// head_dim).
std::vector<float> new_rows(const AttendCase& c, const std::vector<float>& cache) {
  std::vector<float> rows;
  for (int64_t t = c.first_position; t < c.n_keys(); ++t)
    for (int64_t head = 0; head < c.n_kv_heads; ++head) {
      const auto at = cache.begin() + static_cast<int64_t>(c.cache_at(0, head, t));
      rows.insert(rows.end(), at, at + c.head_dim);
    }
  return rows;
}

// The same cache as it is before those are stored.
std::vector<float> without_new_rows(const AttendCase& c, std::vector<float> cache) {
  for (int64_t head = 0; head < c.n_kv_heads; ++head)
    std::fill_n(cache.begin() + static_cast<int64_t>(c.cache_at(0, head, c.first_position)),
                c.n_tokens * c.head_dim, NAN);
  return cache;
}

TEST_P(EveryBackend, ARaggedBatchIsStoredAndAttendedSequenceBySequence) {
  for (const std::vector<AttendCase>& cases : kRagged) {
    const AttendCase& shape = cases.front();
    SCOPED_TRACE(testing::PrintToString(shape));
    std::vector<AttendInputs> inputs;
    std::vector<DeviceTensor> caches;  // keys and values of each
    std::vector<RaggedSequence> sequences;
    std::vector<float> queries, keys, values;
    int64_t n_rows = 0;
    for (const AttendCase& c : cases) {
      const AttendInputs& in = inputs.emplace_back(c, dtype(), static_cast<uint32_t>(n_rows + 1));
      queries.insert(queries.end(), in.queries.begin(), in.queries.end());
      for (const auto& [all, cache] :
           {std::pair(&keys, &in.keys), std::pair(&values, &in.values)}) {
        const std::vector<float> rows = new_rows(c, *cache);
        all->insert(all->end(), rows.begin(), rows.end());
        caches.emplace_back(*backend, dtype(), c.cache(), without_new_rows(c, *cache));
      }
      n_rows += c.n_tokens;
    }
    int64_t row = 0;
    for (size_t i = 0; i < cases.size(); ++i) {
      sequences.push_back({.cache = {caches[2 * i].view(), caches[2 * i + 1].view()},
                           .first_row = row,
                           .n_tokens = cases[i].n_tokens,
                           .first_position = cases[i].first_position});
      row += cases[i].n_tokens;
    }
    const Shape rows{n_rows, shape.n_heads, shape.head_dim};
    const Shape kv_rows{n_rows, shape.n_kv_heads, shape.head_dim};
    const DeviceTensor q(*backend, dtype(), rows, queries), k(*backend, dtype(), kv_rows, keys);
    const DeviceTensor v(*backend, dtype(), kv_rows, values);
    const DeviceTensor out = unwritten(*backend, dtype(), rows);
    backend->attend_ragged({.attend = {.queries = q.view(),
                                       .cache = {},
                                       .n_tokens = 0,
                                       .first_position = 0,
                                       .causal = true,
                                       .window = shape.window,
                                       .scale = shape.scale(),
                                       .out = out.view()},
                            .keys = k.view(),
                            .values = v.view(),
                            .sequences = sequences});
    const std::vector<float> got = out.values();
    for (size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(testing::PrintToString(cases[i]));
      EXPECT_EQ(new_rows(cases[i], caches[2 * i].values()), new_rows(cases[i], inputs[i].keys));
      EXPECT_EQ(new_rows(cases[i], caches[2 * i + 1].values()),
                new_rows(cases[i], inputs[i].values));
      const auto first = got.begin() + sequences[i].first_row * shape.n_heads * shape.head_dim;
      const auto expected = attend(*reference, DType::kF32, cases[i], inputs[i]);
      EXPECT_CLOSE(std::vector<float>(first, first + std::ssize(expected)), expected,
                   attend_bounds(*reference, dtype(), cases[i], inputs[i], expected));
    }
  }
}

TEST_P(EveryBackend, ScoresFarApartDoNotOverflow) {
  // One key wins by hundreds: its value is the answer, in whichever tile it stands.
  for (const int64_t n : {5, 140, 300})
    for (const int64_t winner : {int64_t{0}, n / 2, n - 1}) {
      const AttendCase c{
          .n_tokens = n, .head_dim = 16, .n_heads = 1, .n_kv_heads = 1, .causal = false};
      AttendInputs in(c, dtype());
      std::fill(in.queries.begin(), in.queries.end(), 16.0f);
      for (int64_t j = 0; j < n; ++j)
        std::fill_n(in.keys.begin() + j * 16, 16, j == winner ? 16.0f : -16.0f);
      const auto got = attend(*backend, dtype(), c, in);
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(got[i], in.values[static_cast<size_t>(winner * 16) + i % 16]) << n << " " << i;
    }
}

TEST_P(EveryBackend, TheFutureDoesNotTouchThePast) {
  const AttendCase cases[] = {
      {.n_tokens = 6, .head_dim = 64},
      {.n_tokens = 37, .head_dim = 80, .n_batch = 2},
      {.n_tokens = 129, .head_dim = 64, .n_heads = 4, .n_kv_heads = 2},
      {.n_tokens = 300, .head_dim = 16, .n_heads = 1, .n_kv_heads = 1},
      {.n_tokens = 140, .head_dim = 32, .first_position = 129, .window = 70}};
  for (const AttendCase& c : cases)
    for (const int64_t last : {int64_t{0}, int64_t{2}, c.n_tokens / 2, c.n_tokens - 2}) {
      SCOPED_TRACE(testing::PrintToString(c) + ", past up to token " + std::to_string(last));
      const AttendInputs in(c, dtype());
      AttendInputs changed = in;
      const AttendInputs other(c, dtype(), 77);
      const int64_t width = c.n_heads * c.head_dim;
      const int64_t first_changed = c.first_position + last + 1;
      for (int64_t batch = 0; batch < c.n_batch; ++batch) {
        const int64_t begin = (batch * c.n_tokens + last + 1) * width;
        const int64_t end = (batch + 1) * c.n_tokens * width;
        std::copy(other.queries.begin() + begin, other.queries.begin() + end,
                  changed.queries.begin() + begin);
        for (int64_t head = 0; head < c.n_kv_heads; ++head) {
          const auto from = static_cast<int64_t>(c.cache_at(batch, head, first_changed));
          for (int64_t i = from; i < from + (c.n_keys() - first_changed) * c.head_dim; ++i) {
            // Larger numbers than before, so that a maximum over the future would show.
            changed.keys[static_cast<size_t>(i)] = 64 * other.keys[static_cast<size_t>(i)];
            changed.values[static_cast<size_t>(i)] = 1024 * other.values[static_cast<size_t>(i)];
          }
        }
      }
      const auto before = attend(*backend, dtype(), c, in);
      const auto after = attend(*backend, dtype(), c, changed);
      for (int64_t batch = 0; batch < c.n_batch; ++batch) {
        const auto past = [&](const std::vector<float>& all) {
          const auto begin = all.begin() + batch * c.n_tokens * width;
          return std::vector<float>(begin, begin + (last + 1) * width);
        };
        EXPECT_SAME_BITS(past(after), past(before));
      }
    }
}

}  // namespace
}  // namespace sluice::impl::test
