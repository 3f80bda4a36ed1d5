// How a device settles segments for refined attention: pages of every number and head size against
// the reference's, by tensor cores and without, from a pass and in place. Seen through answers of
// the plain kernel, which rows that are not aligned go to.

#include <limits>

#include "parity/keys_case.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();  // delta that opens nothing

struct SettleCase {
  int64_t n_tokens, head_dim;
  int64_t segment = 256, sinks = 16, window = 64;
  float offset = 0;  // of all keys
  int64_t n_heads = 4, n_kv_heads = 2;

  Shape queries(int64_t n) const { return {n, n_heads, head_dim}; }
  Shape keys(int64_t n) const { return {n, n_kv_heads, head_dim}; }
  // Answers of the first head go by means alone, those of the second by statistics too.
  RefineSpec spec(DType dtype) const {
    return {.n_heads = n_heads,
            .n_kv_heads = n_kv_heads,
            .head_dim = head_dim,
            .dtype = dtype,
            .scale = 1 / std::sqrt(static_cast<float>(head_dim)),
            .capacity = n_tokens,
            .window = window,
            .segment = segment,
            .sinks = sinks,
            .tile = 1,
            .heads = {{HeadKind::kClusters, kNever}, {HeadKind::kClusters, 0.05}}};
  }
};

void PrintTo(const SettleCase& c, std::ostream* out) {
  *out << c.n_tokens << " tokens, head_dim " << c.head_dim << ", segment " << c.segment
       << ", sinks " << c.sinks << ", offset " << c.offset;
}

struct SettleInputs {
  SettleInputs(const SettleCase& c, DType dtype)
      : queries(random_values(c.queries(c.n_tokens).numel(), 1, dtype, 3.0f)),
        keys(random_values(c.keys(c.n_tokens).numel(), 2)),
        values(random_values(c.keys(c.n_tokens).numel(), 3, dtype)) {
    for (float& x : keys) x = rounded(dtype, x + c.offset);
  }
  std::vector<float> queries, keys, values;
};

struct Settled {
  std::vector<float> out;       // (n_tokens, n_heads, head_dim)
  std::vector<int64_t> opened;  // (n_segments, n_heads)
};

constexpr int64_t kPad = 1;         // between rows, so that they are not aligned
constexpr int64_t kAlignedPad = 8;  // so that they are: the first pass is read where it lies

// `cuts`: where a pass ends and the next begins, ascending. spec: with the dtype of means.
Settled attend(Backend& backend, DType dtype, const RefineSpec& spec, const SettleCase& c,
               const SettleInputs& in, std::vector<int64_t> cuts = {}, int64_t key_pad = kPad) {
  const DeviceTensor queries(backend, dtype, c.queries(c.n_tokens), in.queries, kPad);
  const DeviceTensor keys(backend, dtype, c.keys(c.n_tokens), in.keys, key_pad);
  const DeviceTensor values(backend, dtype, c.keys(c.n_tokens), in.values, 2 * key_pad);
  const DeviceTensor out = unwritten(backend, dtype, c.queries(c.n_tokens), kPad);
  const auto attention = backend.make_refine_attention(spec);
  cuts.push_back(c.n_tokens);
  int64_t first = 0;
  for (const int64_t last : cuts) {
    attention->attend({.queries = queries.view().rows_from(first, last - first),
                       .keys = keys.view().rows_from(first, last - first),
                       .values = values.view().rows_from(first, last - first),
                       .out = out.view().rows_from(first, last - first)});
    first = last;
  }
  return {out.values(), attention->opened()};
}

// Answers of query heads that are beyond their bounds. Values are at most 1.
int64_t n_beyond(DType dtype, const SettleCase& c, const SettleInputs& in,
                 const std::vector<float>& got, const std::vector<float>& expected) {
  const double score = largest_row_norm(in.queries, c.head_dim) *
                       largest_row_norm(in.keys, c.head_dim) /
                       std::sqrt(static_cast<double>(c.head_dim));
  const double error = attention_error(
      dtype, {.head_dim = c.head_dim, .n_keys = c.n_tokens, .score = score, .means = true});
  int64_t n = 0;
  for (size_t first = 0; first < got.size(); first += static_cast<size_t>(c.head_dim)) {
    bool within = true;
    for (size_t i = first; i < first + static_cast<size_t>(c.head_dim); ++i)
      within = within &&
               std::abs(double{got[i]} - expected[i]) <= stored_error(dtype, expected[i], error);
    n += within ? 0 : 1;
  }
  return n;
}

// An estimate next to delta may be decided otherwise in f32 than in f64: of tens of thousands of
// decisions hardly one.
constexpr int64_t kMostOtherwise = 2;
void expect_same(DType dtype, const SettleCase& c, const SettleInputs& in, const Settled& got,
                 const Settled& expected) {
  EXPECT_LE(n_beyond(dtype, c, in, got.out, expected.out), kMostOtherwise);
  ASSERT_EQ(got.opened.size(), expected.opened.size());
  int64_t otherwise = 0;
  for (size_t i = 0; i < got.opened.size(); ++i)
    otherwise += std::abs(got.opened[i] - expected.opened[i]);
  EXPECT_LE(otherwise, kMostOtherwise * 16);
}

// The second cut is where the pass's first query closes a segment: it is settled in place.
TEST_P(EveryBackend, SettledPagesAgreeWithTheReference) {
  const SettleCase cases[] = {
      {.n_tokens = 700, .head_dim = 128},
      {.n_tokens = 700, .head_dim = 64, .offset = 3},
      {.n_tokens = 400, .head_dim = 48, .segment = 64, .sinks = 48},  // one page
      {.n_tokens = 500, .head_dim = 80, .segment = 112, .sinks = 0},
      {.n_tokens = 400, .head_dim = 256, .segment = 128, .sinks = 32},
      {.n_tokens = 400, .head_dim = 20, .segment = 96},  // not on tensor cores
      {.n_tokens = 1300, .head_dim = 32, .segment = 512},
      {.n_tokens = 1300, .head_dim = 128, .segment = 1024},  // more than shared memory holds
      {.n_tokens = 400, .head_dim = 64, .segment = 16, .sinks = 0},
  };
  for (const SettleCase& c : thinned(cases, 3)) {
    SCOPED_TRACE(testing::PrintToString(c));
    const SettleInputs in(c, dtype());
    // The reference is f32, but rounds means as the cache does.
    const Settled expected = attend(*reference, DType::kF32, c.spec(dtype()), c, in);
    const Settled whole = attend(*backend, dtype(), c.spec(dtype()), c, in);
    expect_same(dtype(), c, in, whole, expected);
    EXPECT_SAME_BITS(attend(*backend, dtype(), c.spec(dtype()), c, in).out, whole.out);
    expect_same(dtype(), c, in, attend(*backend, dtype(), c.spec(dtype()), c, in, {}, kAlignedPad),
                expected);
    const int64_t closing = c.window + c.segment;
    expect_same(dtype(), c, in,
                attend(*backend, dtype(), c.spec(dtype()), c, in, {3, closing, closing + 5}),
                expected);
  }
}

// All projections are equal, so rows stay in order.
TEST_P(EveryBackend, EqualKeysAreSettledInOrder) {
  const SettleCase c{.n_tokens = 600, .head_dim = 64, .segment = 128};
  SettleInputs in(c, dtype());
  std::fill(in.keys.begin(), in.keys.end(), 0.25f);
  expect_same(dtype(), c, in, attend(*backend, dtype(), c.spec(dtype()), c, in),
              attend(*reference, DType::kF32, c.spec(dtype()), c, in));
}

TEST_P(EveryBackend, SpecsThatTheDeviceDoesNotTakeAreRefused) {
  const RefineSpec taken = SettleCase{.n_tokens = 600, .head_dim = 64}.spec(dtype());
  EXPECT_NE(backend->make_refine_attention(taken), nullptr);
  RefineSpec spec = taken;
  spec.page = 8;
  EXPECT_THROW(backend->make_refine_attention(spec), Error);
  spec = taken;
  spec.segment = 2048;
  EXPECT_THROW(backend->make_refine_attention(spec), Error);
  spec = taken;
  spec.tile = 8;
  EXPECT_THROW(backend->make_refine_attention(spec), Error);
}

}  // namespace
}  // namespace sluice::impl::test
