// Refined attention of one token at a time: against the reference, from positions before, at and
// behind borders; recorded steps against plain ones; and texts of many pages to a thread block.

#include <limits>

#include "parity/keys_case.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();  // delta that opens nothing

struct DecodeCase {
  int64_t n_tokens, head_dim;
  int64_t n_heads = 5, n_kv_heads = 5;
  int64_t pad = 0;  // between rows
  int64_t window = 32, segment = 64, sinks = 16, early = 0;

  Shape queries(int64_t n) const { return {n, n_heads, head_dim}; }
  Shape keys(int64_t n) const { return {n, n_kv_heads, head_dim}; }
  // The kinds of heads in rotation. At this delta random keys open some pages and leave others.
  std::vector<RefineHead> heads() const {
    const RefineHead kinds[] = {{HeadKind::kClusters, 0.05},
                                {HeadKind::kClusters, 0},
                                {HeadKind::kClusters, kNever},
                                {HeadKind::kWindow, 0},
                                {HeadKind::kDense, 0}};
    std::vector<RefineHead> heads;
    for (int64_t i = 0; i < n_kv_heads; ++i) heads.push_back(kinds[i % 5]);
    return heads;
  }
  RefineSpec spec(DType dtype) const {
    return {.n_heads = n_heads,
            .n_kv_heads = n_kv_heads,
            .head_dim = head_dim,
            .dtype = dtype,
            .scale = 1 / std::sqrt(static_cast<float>(head_dim)),
            .capacity = n_tokens + 100,
            .window = window,
            .segment = segment,
            .early = early,
            .sinks = sinks,
            .tile = 1,
            .heads = heads()};
  }
};

void PrintTo(const DecodeCase& c, std::ostream* out) {
  *out << c.n_tokens << " tokens, head_dim " << c.head_dim << ", " << c.n_heads << "/"
       << c.n_kv_heads << " heads, pad " << c.pad;
}

struct DecodeInputs {
  DecodeInputs(const DecodeCase& c, DType dtype)
      : queries(random_values(c.queries(c.n_tokens).numel(), 1, dtype, 3.0f)),
        keys(random_values(c.keys(c.n_tokens).numel(), 2, dtype)),
        values(random_values(c.keys(c.n_tokens).numel(), 3, dtype)) {}
  std::vector<float> queries, keys, values;
};

// The tokens of a text on a backend, and the answers to them.
struct Sequence {
  Sequence(Backend& backend, DType dtype, const DecodeCase& c, const DecodeInputs& in)
      : queries(backend, dtype, c.queries(c.n_tokens), in.queries, c.pad),
        keys(backend, dtype, c.keys(c.n_tokens), in.keys, c.pad),
        values(backend, dtype, c.keys(c.n_tokens), in.values, c.pad),
        out(unwritten(backend, dtype, c.queries(c.n_tokens), c.pad)) {}
  void attend(RefineAttention& attention, int64_t first, int64_t n) const {
    attention.attend({.queries = queries.view().rows_from(first, n),
                      .keys = keys.view().rows_from(first, n),
                      .values = values.view().rows_from(first, n),
                      .out = out.view().rows_from(first, n)});
  }
  DeviceTensor queries, keys, values, out;
};

// Bound of an element. Values are at most 1, and so is what weights of sum 1 make of them.
std::vector<double> bounds_of(DType dtype, const DecodeCase& c, const DecodeInputs& in,
                              const std::vector<float>& expected) {
  const double score = largest_row_norm(in.queries, c.head_dim) *
                       largest_row_norm(in.keys, c.head_dim) /
                       std::sqrt(static_cast<double>(c.head_dim));
  const double error = attention_error(
      dtype, {.head_dim = c.head_dim, .n_keys = c.n_tokens, .score = score, .means = true});
  std::vector<double> bounds;
  for (const float x : expected) bounds.push_back(stored_error(dtype, x, error));
  return bounds;
}

// Answers of one query head that are beyond their bounds. An estimate next to delta may be decided
// otherwise in f32 than in f64: of tens of thousands of decisions hardly one.
constexpr int64_t kMostOtherwise = 2;
int64_t n_beyond(const std::vector<float>& got, const std::vector<float>& expected,
                 const std::vector<double>& bounds, int64_t head_dim) {
  int64_t n = 0;
  for (size_t first = 0; first < got.size(); first += static_cast<size_t>(head_dim)) {
    bool within = true;
    for (size_t i = first; i < first + static_cast<size_t>(head_dim); ++i)
      within = within && std::abs(double{got[i]} - expected[i]) <= bounds[i];
    n += within ? 0 : 1;
  }
  return n;
}

int64_t difference(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  EXPECT_EQ(a.size(), b.size());
  int64_t sum = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) sum += std::abs(a[i] - b[i]);
  return sum;
}

// Every group of query heads and width of a row, aligned or not. Decoding begins with the first
// token, before a border and behind one, and goes on over borders.
TEST_P(EveryBackend, RefinedDecodingAgreesWithTheReference) {
  const DecodeCase cases[] = {
      {.n_tokens = 300, .head_dim = 64},
      {.n_tokens = 300, .head_dim = 128, .n_heads = 15},
      {.n_tokens = 230, .head_dim = 80, .n_heads = 10},
      {.n_tokens = 230, .head_dim = 72, .n_heads = 25},
      {.n_tokens = 230, .head_dim = 8, .n_heads = 80},
      {.n_tokens = 230, .head_dim = 256, .n_heads = 10},
      {.n_tokens = 230, .head_dim = 200},
      {.n_tokens = 230, .head_dim = 20, .n_heads = 10},
      {.n_tokens = 230, .head_dim = 64, .n_heads = 10, .pad = 1},
      {.n_tokens = 230, .head_dim = 64, .window = 0, .segment = 32, .sinks = 0},
      {.n_tokens = 300, .head_dim = 128, .n_heads = 15, .segment = 128, .early = 32},
      {.n_tokens = 300, .head_dim = 64, .window = 0, .segment = 128, .early = 64},
  };
  for (const DecodeCase& c : thinned(cases, 3)) {
    const DecodeInputs in(c, dtype());
    // The reference is f32, but rounds means as the backend's cache does.
    const auto defined = reference->make_refine_attention(c.spec(dtype()));
    const Sequence all(*reference, DType::kF32, c, in);
    all.attend(*defined, 0, c.n_tokens);
    const auto expected = all.out.values();
    const auto bounds = bounds_of(dtype(), c, in, expected);
    for (const int64_t first : thinned({0, 94, 161}, 2)) {
      SCOPED_TRACE(testing::Message() << testing::PrintToString(c) << ", from " << first);
      const auto attention = backend->make_refine_attention(c.spec(dtype()));
      const Sequence text(*backend, dtype(), c, in);
      if (first > 0) text.attend(*attention, 0, first);
      for (int64_t t = first; t < c.n_tokens; ++t) text.attend(*attention, t, 1);
      EXPECT_LE(n_beyond(text.out.values(), expected, bounds, c.head_dim), kMostOtherwise);
      EXPECT_LE(difference(attention->opened(), defined->opened()), kMostOtherwise * 16);
    }
  }
}

// The sums of a recorded step have another order: as many blocks share a head as at the end.
TEST_P(EveryBackend, RecordedStepsOfRefinedAttentionGiveWhatPlainStepsGive) {
  for (const DecodeCase& c : {DecodeCase{.n_tokens = 300, .head_dim = 64},
                              DecodeCase{.n_tokens = 300, .head_dim = 64, .early = 32},
                              DecodeCase{.n_tokens = 300, .head_dim = 128, .n_heads = 15}})
    for (const int64_t first : thinned({1, 94, 161}, 2)) {
      SCOPED_TRACE(testing::Message() << testing::PrintToString(c) << ", from " << first);
      const DecodeInputs in(c, dtype());
      RefineSpec spec = c.spec(dtype());
      spec.capacity = 3000;
      const auto plain = backend->make_refine_attention(spec);
      const auto recorded = backend->make_refine_attention(spec);
      const Sequence text(*backend, dtype(), c, in), source(*backend, DType::kF32, c, in);
      const DeviceTensor queries = unwritten(*backend, dtype(), c.queries(1));
      const DeviceTensor keys = unwritten(*backend, dtype(), c.keys(1));
      const DeviceTensor values = unwritten(*backend, dtype(), c.keys(1));
      const DeviceTensor out = unwritten(*backend, dtype(), c.queries(1));
      const auto place = [&](int64_t t) {
        backend->convert(source.queries.view().rows_from(t, 1), queries.view());
        backend->convert(source.keys.view().rows_from(t, 1), keys.view());
        backend->convert(source.values.view().rows_from(t, 1), values.view());
      };
      const auto step = [&] {
        recorded->attend({.queries = queries.view(),
                          .keys = keys.view(),
                          .values = values.view(),
                          .out = out.view()});
      };
      text.attend(*plain, 0, first);
      text.attend(*recorded, 0, first);
      for (int64_t t = first; t < c.n_tokens; ++t) text.attend(*plain, t, 1);
      const auto all = text.out.values();
      place(first);
      step();  // finds the memory that a recording needs
      const auto recording = backend->recorder()->record(step);
      ASSERT_NE(recording, nullptr);
      const auto bounds = bounds_of(dtype(), c, in, all);
      std::vector<float> got, expected;
      std::vector<double> allowed;
      const int64_t width = c.n_heads * c.head_dim;
      for (int64_t t = first + 1; t < c.n_tokens; ++t) {
        place(t);
        // Replays and plain steps of one sequence; what closes a segment is never a replay.
        if (t % 50 == 7 || !recorded->can_record_next()) {
          step();
        } else {
          ASSERT_TRUE(recording->valid());
          recorded->expect_token();
          recording->replay(t);
        }
        const auto row = out.values();
        got.insert(got.end(), row.begin(), row.end());
        const auto at = static_cast<size_t>(t * width), end = static_cast<size_t>((t + 1) * width);
        for (size_t i = at; i < end; ++i) {
          expected.push_back(all[i]);
          allowed.push_back(bounds[i]);
        }
      }
      EXPECT_LE(n_beyond(got, expected, allowed, c.head_dim), kMostOtherwise);
      EXPECT_LE(difference(recorded->opened(), plain->opened()), kMostOtherwise * 16);
    }
}

// So many heads that a thread block has all pages of its own, more than it decides about at a time.
// Heads in pairs of the same numbers: one opens everything, one is dense.
TEST_P(EveryBackend, OpeningAllPagesOfALongTextIsDenseAttention) {
  if (dtype() != DType::kBF16) GTEST_SKIP() << "prefill of so many tokens is slow in f32";
  if (kFewCases) GTEST_SKIP() << "a path through kernels that the other cases take too";
  constexpr int64_t kPass = 1000, kPasses = 18, kHeads = 400;
  const DecodeCase c{.n_tokens = kPass,
                     .head_dim = 8,
                     .n_heads = kHeads,
                     .n_kv_heads = kHeads,
                     .window = 64,
                     .segment = 256};
  DecodeInputs in(c, dtype());
  for (auto* part : {&in.queries, &in.keys, &in.values})
    for (size_t i = 0; i < part->size(); i += 16)
      std::copy_n(part->begin() + static_cast<std::ptrdiff_t>(i), 8,
                  part->begin() + static_cast<std::ptrdiff_t>(i) + 8);
  RefineSpec spec = c.spec(dtype());
  spec.capacity = kPass * kPasses + 1;
  spec.tile = 64;
  for (size_t i = 0; i < spec.heads.size(); ++i)
    spec.heads[i] = {i % 2 == 0 ? HeadKind::kClusters : HeadKind::kDense, 0};
  const auto attention = backend->make_refine_attention(spec);
  const Sequence text(*backend, dtype(), c, in);
  for (int64_t pass = 0; pass < kPasses; ++pass) text.attend(*attention, 0, kPass);
  text.attend(*attention, 0, 1);
  const auto out = rows_of(text.out.values(), kHeads * 8, 0, 1);
  std::vector<float> opened, dense;
  for (size_t i = 0; i < out.size(); ++i) (i / 8 % 2 == 0 ? opened : dense).push_back(out[i]);
  // Both are f32 but for the last rounding.
  EXPECT_CLOSE(opened, dense, 2 * kBF16Unit);
  const auto counts = attention->opened();
  for (size_t i = counts.size() - kHeads; i < counts.size(); i += 2)
    EXPECT_EQ(counts[i], counts[i + 1]);
}

}  // namespace
}  // namespace sluice::impl::test
