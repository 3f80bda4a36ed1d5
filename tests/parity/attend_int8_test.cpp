// Dense attention over a cache of int8 rows: what is stored, and attention to it, against the
// reference.

#include "parity/attend_bounds.h"

namespace sluice::impl::test {
namespace {

// Keys and values of int8 as a backend of the host has them. Positions that nobody stored have
// scales that are no numbers.
struct Int8Cache {
  Int8Cache(Backend& backend, const AttendCase& c)
      : keys(backend.allocate(DType::kI8, c.cache())),
        values(backend.allocate(DType::kI8, c.cache())),
        key_scales(backend.allocate(DType::kF32, {c.n_batch, c.n_kv_heads, c.capacity()})),
        value_scales(backend.allocate(DType::kF32, {c.n_batch, c.n_kv_heads, c.capacity()})) {
    for (const Buffer* scales : {&key_scales, &value_scales})
      std::fill_n(scales->view().data<float>(), scales->view().shape().numel(), NAN);
  }
  KvView view() const {
    return {keys.view(), values.view(), key_scales.view(), value_scales.view()};
  }
  // Scales and integers, as bits.
  std::vector<float> stored() const {
    std::vector<float> all;
    for (const Buffer* rows : {&keys, &values})
      for (int64_t i = 0; i < rows->view().shape().numel(); ++i)
        all.push_back(rows->view().data<int8_t>()[i]);
    for (const Buffer* scales : {&key_scales, &value_scales})
      for (int64_t i = 0; i < scales->view().shape().numel(); ++i)
        all.push_back(scales->view().data<float>()[i]);
    return all;
  }
  std::vector<float> expanded(const Buffer& rows, const Buffer& scales) const {
    const int64_t head_dim = rows.view().shape()[3];
    std::vector<float> all;
    for (int64_t i = 0; i < rows.view().shape().numel(); ++i)
      all.push_back(static_cast<float>(rows.view().data<int8_t>()[i]) *
                    scales.view().data<float>()[i / head_dim]);
    return all;
  }

  Buffer keys, values, key_scales, value_scales;
};

// Rows [first, first + n) of every sequence of a cache, (n_batch * n, n_kv_heads, head_dim).
std::vector<float> rows_of(const AttendCase& c, const std::vector<float>& cache, int64_t first,
                           int64_t n) {
  std::vector<float> rows;
  for (int64_t batch = 0; batch < c.n_batch; ++batch)
    for (int64_t t = first; t < first + n; ++t)
      for (int64_t head = 0; head < c.n_kv_heads; ++head) {
        const auto at = cache.begin() + static_cast<int64_t>(c.cache_at(batch, head, t));
        rows.insert(rows.end(), at, at + c.head_dim);
      }
  return rows;
}

void store(Backend& backend, DType dtype, const AttendCase& c, const AttendInputs& in,
           const Int8Cache& cache, int64_t first, int64_t n) {
  const Shape shape{c.n_batch * n, c.n_kv_heads, c.head_dim};
  const DeviceTensor keys(backend, dtype, shape, rows_of(c, in.keys, first, n), c.pad);
  const DeviceTensor values(backend, dtype, shape, rows_of(c, in.values, first, n), c.pad);
  backend.store_kv({.keys = keys.view(),
                    .values = values.view(),
                    .n_tokens = n,
                    .first_position = first,
                    .cache = cache.view()});
}

Int8Cache stored(Backend& backend, DType dtype, const AttendCase& c, const AttendInputs& in) {
  Int8Cache cache(backend, c);
  if (c.first_position > 0) store(backend, dtype, c, in, cache, 0, c.first_position);
  store(backend, dtype, c, in, cache, c.first_position, c.n_tokens);
  return cache;
}

std::vector<float> attend_int8(Backend& backend, DType dtype, const AttendCase& c,
                               const AttendInputs& in) {
  const Int8Cache cache = stored(backend, dtype, c, in);
  const DeviceTensor queries(backend, dtype, c.rows(), in.queries, c.pad);
  const DeviceTensor out = unwritten(backend, dtype, c.rows(), c.pad);
  AttendDenseArgs args = c.args();
  args.queries = queries.view();
  args.cache = cache.view();
  args.out = out.view();
  backend.attend_dense(args);
  return out.values();
}

// The same rows expanded to f32, for attention over an exact cache.
AttendInputs expanded(Backend& reference, const AttendCase& c, const AttendInputs& in) {
  const Int8Cache cache = stored(reference, DType::kF32, c, in);
  AttendInputs out = in;
  out.keys = cache.expanded(cache.keys, cache.key_scales);
  out.values = cache.expanded(cache.values, cache.value_scales);
  return out;
}

// A scale multiplies a sum here, and every number of a row there: two roundings. In bf16 single
// rows of queries are integers of 15 bits, which err by the largest of a query / 32638 each, and
// the score by sqrt(d) of that; weights have 16 bits of the largest of 128, so that a block errs by
// half a unit for each row of up to 127 times its scale. The largest weights of all blocks together
// are 1 at most.
AttendErrors errors_of(DType dtype, const AttendCase& c, const AttendInputs& in) {
  if (dtype == DType::kF32) return {.score = 2 * kF32Unit, .value = 2 * kF32Unit};
  float largest = 0;
  for (const float x : in.values)
    largest = std::isnan(x) ? largest : std::max(largest, std::abs(x));
  return {.score = 2 * kF32Unit + std::sqrt(static_cast<double>(c.head_dim)) / 32638,
          .value = 2 * kF32Unit,
          .sum = 128 * double{largest} / (2 * 65535)};
}

const AttendCase kCases[] = {
    {.n_tokens = 1, .head_dim = 64},
    {.n_tokens = 1, .head_dim = 1, .first_position = 6},
    {.n_tokens = 2, .head_dim = 16, .n_heads = 4, .n_kv_heads = 1},
    {.n_tokens = 7, .head_dim = 80, .n_batch = 3},
    {.n_tokens = 7, .head_dim = 128, .first_position = 300, .n_heads = 6, .n_kv_heads = 2},
    {.n_tokens = 7, .head_dim = 96, .causal = false, .pad = 3},
    {.n_tokens = 8, .head_dim = 1, .n_batch = 2},
    {.n_tokens = 9, .head_dim = 3, .causal = false},
    {.n_tokens = 37, .head_dim = 80, .n_heads = 4, .n_kv_heads = 2, .pad = 5},
    {.n_tokens = 37, .head_dim = 17, .first_position = 131},
    {.n_tokens = 129, .head_dim = 64, .n_batch = 2, .size = 30},
    {.n_tokens = 300, .head_dim = 64, .n_heads = 3, .n_kv_heads = 1},
    // Single queries: blocks and stretches that end at, before and behind eight rows, and groups of
    // every size that a kernel has.
    {.n_tokens = 1, .head_dim = 64, .first_position = 1500, .n_heads = 9, .n_kv_heads = 3},
    {.n_tokens = 1, .head_dim = 16, .first_position = 512, .n_heads = 9, .n_kv_heads = 1},
    {.n_tokens = 1, .head_dim = 128, .first_position = 134, .n_heads = 2, .n_kv_heads = 1},
    {.n_tokens = 1, .head_dim = 48, .first_position = 127, .n_heads = 4, .n_kv_heads = 1},
    {.n_tokens = 3, .head_dim = 80, .first_position = 1022, .n_heads = 8, .n_kv_heads = 1},
    {.n_tokens = 2, .head_dim = 24, .first_position = 700, .n_heads = 7, .n_kv_heads = 1},
    {.n_tokens = 1, .head_dim = 528, .first_position = 20, .n_heads = 1, .n_kv_heads = 1},
    {.n_tokens = 3, .head_dim = 32, .first_position = 1022, .n_batch = 2, .window = 700},
    {.n_tokens = 70, .head_dim = 64, .first_position = 230, .window = 33},
    {.n_tokens = 1, .head_dim = 256, .first_position = 70, .n_heads = 4, .size = 5, .cap = 2},
    {.n_tokens = 37, .head_dim = 96, .n_heads = 4, .size = 9, .cap = 1},
    {.n_tokens = 40, .head_dim = 17, .first_position = 700, .window = 300, .cap = 2},
    {.n_tokens = 1, .head_dim = 64, .first_position = 900, .size = 40},
};

class Int8Cached : public EveryBackend {};

TEST_P(Int8Cached, RowsAndScalesAreThoseOfTheReference) {
  for (const AttendCase& c : kCases) {
    SCOPED_TRACE(testing::PrintToString(c));
    AttendInputs in(c, dtype());
    std::fill_n(in.keys.begin(), c.head_dim, 0.0f);
    if (c.n_keys() > 3) {
      in.values[c.cache_at(0, 0, 1)] = INFINITY;
      in.keys[c.cache_at(0, 0, 2) + static_cast<size_t>(c.head_dim) - 1] = NAN;
    }
    EXPECT_SAME_BITS(stored(*backend, dtype(), c, in).stored(),
                     stored(*reference, DType::kF32, c, in).stored());
  }
}

TEST_P(Int8Cached, AttentionAgreesWithTheReference) {
  for (const AttendCase& c : kCases) {
    SCOPED_TRACE(testing::PrintToString(c));
    const AttendInputs in(c, dtype());
    const AttendInputs exact = expanded(*reference, c, in);
    const auto expected = attend(*reference, DType::kF32, c, exact);
    EXPECT_CLOSE(
        attend_int8(*backend, dtype(), c, in), expected,
        attend_bounds(*reference, dtype(), c, exact, expected, errors_of(dtype(), c, exact)));
    // The reference multiplies in double precision: the rounding of its answer, and of the rows
    // that were expanded.
    EXPECT_CLOSE(attend_int8(*reference, DType::kF32, c, in), expected,
                 attend_bounds(*reference, DType::kF32, c, exact, expected,
                               {.score = kF32Unit, .value = kF32Unit}));
  }
}

TEST_P(Int8Cached, PiecesOfATextSeeTheSameRows) {
  // Key blocks start at fixed positions, so that pieces of 8 tokens or more give the same bits.
  const AttendCase whole{.n_tokens = 560, .head_dim = 64, .n_heads = 6, .n_kv_heads = 2};
  const AttendInputs in(whole, dtype());
  const auto expected = attend_int8(*backend, dtype(), whole, in);
  for (const int64_t begin : {8, 70, 128, 255, 300, 530}) {
    AttendCase piece = whole;
    piece.first_position = begin;
    piece.n_tokens = whole.n_tokens - begin;
    AttendInputs part = in;
    const int64_t width = whole.n_heads * whole.head_dim;
    part.queries.erase(part.queries.begin(), part.queries.begin() + begin * width);
    EXPECT_SAME_BITS(attend_int8(*backend, dtype(), piece, part),
                     std::vector<float>(expected.begin() + begin * width, expected.end()));
  }
}

TEST_P(Int8Cached, TheFutureDoesNotTouchThePast) {
  for (const int64_t n : {6, 37, 140}) {
    const AttendCase c{.n_tokens = n, .head_dim = 64, .n_heads = 4, .n_kv_heads = 2};
    const AttendInputs in(c, dtype());
    AttendInputs changed = in;
    const int64_t last = n / 2, width = c.n_heads * c.head_dim;
    for (int64_t head = 0; head < c.n_kv_heads; ++head)
      for (size_t i = c.cache_at(0, head, last + 1); i < c.cache_at(0, head, n); ++i) {
        changed.keys[i] *= 64;
        changed.values[i] *= 1024;
      }
    auto before = attend_int8(*backend, dtype(), c, in);
    auto after = attend_int8(*backend, dtype(), c, changed);
    EXPECT_NE(before, after);
    for (auto* all : {&before, &after}) all->resize(static_cast<size_t>((last + 1) * width));
    EXPECT_SAME_BITS(after, before);
  }
}

TEST_P(Int8Cached, WhatIsNotFiniteShows) {
  for (const int64_t n : {1, 20})
    for (const bool in_keys : {false, true}) {
      const AttendCase c{
          .n_tokens = n, .head_dim = 32, .first_position = 40, .n_heads = 3, .n_kv_heads = 1};
      AttendInputs in(c, dtype());
      (in_keys ? in.keys : in.values)[c.cache_at(0, 0, 17)] = INFINITY;
      for (const float x : attend_int8(*backend, dtype(), c, in)) ASSERT_TRUE(std::isnan(x)) << n;
    }
}

TEST_P(Int8Cached, RowsOfZerosAndTinyValuesAreFine) {
  const AttendCase c{.n_tokens = 1, .head_dim = 32, .first_position = 40};
  AttendInputs in(c, dtype());
  for (auto* rows : {&in.queries, &in.keys, &in.values})
    for (float& x : *rows) x = std::isnan(x) ? x : 0;
  for (const float x : attend_int8(*backend, dtype(), c, in)) ASSERT_EQ(x, 0);
  for (float& x : in.values) x = std::isnan(x) ? x : 0x1p-120f;
  for (const float x : attend_int8(*backend, dtype(), c, in)) ASSERT_NEAR(x, 0x1p-120f, 0x1p-119f);
}

TEST_P(Int8Cached, ARaggedBatchIsStoredAndAttendedSequenceBySequence) {
  const std::vector<AttendCase> cases = {
      {.n_tokens = 37, .head_dim = 64, .n_heads = 6, .n_kv_heads = 2},
      {.n_tokens = 1, .head_dim = 64, .first_position = 300, .n_heads = 6, .n_kv_heads = 2},
      {.n_tokens = 5, .head_dim = 64, .first_position = 20, .n_heads = 6, .n_kv_heads = 2},
      {.n_tokens = 1, .head_dim = 64, .n_heads = 6, .n_kv_heads = 2, .room = 40},
      {.n_tokens = 1, .head_dim = 64, .first_position = 9, .n_heads = 6, .n_kv_heads = 2}};
  std::vector<AttendInputs> inputs;
  std::vector<Int8Cache> caches;
  std::vector<RaggedSequence> sequences;
  std::vector<float> queries, keys, values;
  int64_t n_rows = 0;
  const auto append = [](std::vector<float>& to, const std::vector<float>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  for (const AttendCase& c : cases) {
    const AttendInputs& in = inputs.emplace_back(c, dtype(), static_cast<uint32_t>(n_rows + 1));
    const Int8Cache& cache = caches.emplace_back(*backend, c);
    if (c.first_position > 0) store(*backend, dtype(), c, in, cache, 0, c.first_position);
    append(queries, in.queries);
    append(keys, rows_of(c, in.keys, c.first_position, c.n_tokens));
    append(values, rows_of(c, in.values, c.first_position, c.n_tokens));
    sequences.push_back({.cache = cache.view(),
                         .first_row = n_rows,
                         .n_tokens = c.n_tokens,
                         .first_position = c.first_position});
    n_rows += c.n_tokens;
  }
  const Shape rows{n_rows, 6, 64}, kv_rows{n_rows, 2, 64};
  const DeviceTensor q(*backend, dtype(), rows, queries), k(*backend, dtype(), kv_rows, keys);
  const DeviceTensor v(*backend, dtype(), kv_rows, values);
  const DeviceTensor out = unwritten(*backend, dtype(), rows);
  AttendDenseArgs args = cases[0].args();
  args.queries = q.view();
  args.out = out.view();
  backend->attend_ragged(
      {.attend = args, .keys = k.view(), .values = v.view(), .sequences = sequences});
  const std::vector<float> got = out.values();
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(testing::PrintToString(cases[i]));
    EXPECT_SAME_BITS(caches[i].stored(), stored(*backend, dtype(), cases[i], inputs[i]).stored());
    const auto first = got.begin() + sequences[i].first_row * 6 * 64;
    EXPECT_SAME_BITS(std::vector<float>(first, first + cases[i].n_tokens * 6 * 64),
                     attend_int8(*backend, dtype(), cases[i], inputs[i]));
  }
}

INSTANTIATE_TEST_SUITE_P(Parity, Int8Cached,
                         testing::Values(Setup{"cpu", DType::kF32, make_cpu_backend},
                                         Setup{"cpu", DType::kBF16, make_cpu_backend}),
                         [](const auto& test) {
                           return std::string(dtype_name(test.param.dtype));
                         });

}  // namespace
}  // namespace sluice::impl::test
