// Refined attention against the reference, and the identities of docs/algorithm.md, section 6.

#include "parity/refine_case.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr RefineHead kOpen{HeadKind::kClusters, 0};
constexpr RefineHead kSome{HeadKind::kClusters, 0.02};
constexpr RefineHead kFew{HeadKind::kClusters, 0.1};
constexpr RefineHead kMeans{HeadKind::kClusters, kNever};
constexpr RefineHead kWindow{HeadKind::kWindow, 0};
constexpr RefineHead kDense{HeadKind::kDense, 0};

// Pages of 16, which every backend has.
const RefineCase kCausal[] = {
    {.n_tokens = 1, .head_dim = 64},
    {.n_tokens = 100, .head_dim = 16, .segment = 64},
    {.n_tokens = 257, .head_dim = 64, .window = 0, .segment = 64, .sinks = 0, .delta = 0.2},
    {.n_tokens = 400, .head_dim = 64, .n_heads = 6, .tile = 1, .pad = 3},
    {.n_tokens = 400, .head_dim = 80, .window = 128, .segment = 64, .tile = 1, .delta = 0.1},
    {.n_tokens = 390,
     .head_dim = 128,
     .n_heads = 4,
     .n_kv_heads = 1,
     .window = 128,
     .tile = 128,
     .delta = 0.1},
    {.n_tokens = 333, .head_dim = 256, .segment = 64, .heads = {kSome, kMeans}, .pad = 7},
    {.n_tokens = 300, .head_dim = 64, .tile_factor = 3, .heads = {kOpen, kDense}},
    {.n_tokens = 300, .head_dim = 64, .tile = 1, .heads = {kOpen, kMeans}},
    {.n_tokens = 500,
     .head_dim = 64,
     .n_heads = 8,
     .n_kv_heads = 4,
     .segment = 64,
     .sinks = 32,
     .tile = 16,
     .tile_factor = 2,
     .heads = {kSome, kWindow, kDense, kFew}},
    {.n_tokens = 450,
     .head_dim = 64,
     .n_heads = 4,
     .n_kv_heads = 4,
     .window = 0,
     .tile = 1,
     .heads = {kDense, kFew, kSome, kWindow}},
    {.n_tokens = 700, .head_dim = 64, .n_heads = 3, .n_kv_heads = 1, .segment = 256, .tile = 32},
    {.n_tokens = 600, .head_dim = 16, .segment = 256, .delta = 0.2, .size = 4},
    // Keys with a bias that no query looks at.
    {.n_tokens = 500, .head_dim = 64, .window = 0, .segment = 256, .tile = 128, .bias = 40},
    {.n_tokens = 400, .head_dim = 80, .early = 64, .tile = 1, .delta = 0.01, .bias = 40},
    {.n_tokens = 600, .head_dim = 64, .segment = 64, .tile = 1, .size = 3},
    // Early parts of segments, which single queries see.
    {.n_tokens = 450, .head_dim = 64, .window = 0, .segment = 256, .early = 64, .tile = 1},
    {.n_tokens = 400,
     .head_dim = 128,
     .n_heads = 4,
     .n_kv_heads = 2,
     .window = 40,
     .segment = 192,
     .early = 32,
     .tile = 1,
     .delta = 0.1},
    {.n_tokens = 400,
     .head_dim = 64,
     .n_heads = 4,
     .n_kv_heads = 4,
     .early = 32,
     .tile = 1,
     .heads = {kSome, kWindow, kDense, kMeans}},
    {.n_tokens = 450, .head_dim = 64, .window = 0, .segment = 256, .early = 64, .tile = 128},
};

// What a backend may refuse.
const RefineCase kRare[] = {
    {.n_tokens = 400, .head_dim = 24, .page = 8, .sinks = 8, .delta = 0.1, .rare = true},
    {.n_tokens = 300,
     .head_dim = 64,
     .window = 24,
     .segment = 48,
     .page = 6,
     .sinks = 6,
     .tile = 12,
     .rare = true},
    {.n_tokens = 300,
     .head_dim = 65,
     .window = 5,
     .segment = 50,
     .page = 5,
     .sinks = 0,
     .tile = 1,
     .rare = true},
    {.n_tokens = 400, .head_dim = 64, .members = CacheKind::kInt8, .rare = true},
    {.n_tokens = 400,
     .head_dim = 64,
     .early = 32,
     .tile = 1,
     .members = CacheKind::kInt8,
     .rare = true},
    {.n_tokens = 400,
     .head_dim = 64,
     .n_heads = 4,
     .tile = 1,
     .heads = {kOpen, kDense},
     .members = CacheKind::kInt8,
     .rare = true},
};

const RefineCase kEncoders[] = {
    {.n_tokens = 37, .head_dim = 16, .causal = false},
    {.n_tokens = 256, .head_dim = 64, .n_heads = 4, .sinks = 0, .delta = 0.3, .causal = false},
    {.n_tokens = 300, .head_dim = 64, .tile = 1, .heads = {kSome, kDense}, .causal = false},
    {.n_tokens = 330, .head_dim = 80, .segment = 64, .heads = {kMeans, kFew}, .causal = false},
};

std::vector<RefineCase> causal_cases() {
  std::vector<RefineCase> cases(std::begin(kCausal), std::end(kCausal));
  cases.insert(cases.end(), std::begin(kRare), std::end(kRare));
  return cases;
}

std::vector<RefineCase> all_cases() {
  std::vector<RefineCase> cases = causal_cases();
  cases.insert(cases.end(), std::begin(kEncoders), std::end(kEncoders));
  return cases;
}

// Every n-th: the reference is slow.
std::vector<RefineCase> every(size_t n, const std::vector<RefineCase>& cases, size_t first = 0) {
  std::vector<RefineCase> kept;
  for (size_t i = first; i < cases.size(); i += n) kept.push_back(cases[i]);
  return kept;
}

// Nothing is expected of a refused case.
void expect_answer(const std::optional<RefineAnswer>& got, DType dtype, const RefineCase& c,
                   const RefineInputs& in, const std::vector<float>& expected) {
  if (!got) return;
  EXPECT_CLOSE(got->out, expected, refine_bounds(dtype, c, in, expected));
}
void expect_answer(const std::optional<RefineAnswer>& got, DType dtype, const RefineCase& c,
                   const RefineInputs& in, const RefineAnswer& expected) {
  if (!got) return;
  EXPECT_EQ(got->opened, expected.opened);
  expect_answer(got, dtype, c, in, expected.out);
}

TEST_P(EveryBackend, RefineAttentionAgreesWithTheReference) {
  for (const RefineCase& given : sampled(all_cases(), 2)) {
    SCOPED_TRACE(testing::PrintToString(given));
    const RefineInputs in(given, dtype());
    const RefineCase c = with_clear_delta(*reference, dtype(), given, in);
    const RefineAnswer expected = expected_refine(*reference, dtype(), c, in);
    const auto got = attend_refine(*backend, dtype(), dtype(), c, in);
    expect_answer(got, dtype(), c, in, expected);
  }
}

// One query of a tile looks for the 16 keys that stand out; those of the others are zeros and ask
// for nothing.
TEST_P(EveryImplementation, ATileOpensWhatOneOfItsQueriesNeeds) {
  RefineCase c{.n_tokens = 256, .head_dim = 64, .window = 0, .delta = 0.1};
  RefineInputs in(c, dtype());
  std::fill(in.queries.begin(), in.queries.end(), 0.0f);
  std::fill(in.keys.begin(), in.keys.end(), 0.0f);
  constexpr int64_t kQuery = 150;
  const int64_t width = c.n_heads * c.head_dim;
  for (int64_t head = 0; head < c.n_heads; ++head) {
    const auto at = [&](int64_t t) { return static_cast<size_t>(t * width + head * c.head_dim); };
    in.queries[at(kQuery)] = 40;
    for (int64_t t = 40; t < 56; ++t) in.keys[at(t)] = t % 2 == 0 ? 5 : 3;
  }
  const auto opened = [&](const std::vector<int64_t>& cuts) {
    return attend_refine(*backend, dtype(), dtype(), c, in, cuts)->opened;
  };
  using Counts = std::vector<int64_t>;  // of two segments, two heads
  EXPECT_EQ(opened({}), (Counts{0, 0, 64 * 16, 64 * 16}));
  EXPECT_EQ(opened({150, 151}), (Counts{0, 0, 16, 16}));  // alone
}

// A query that is no number asks for nothing, and the others of its tile still count.
TEST_P(EveryImplementation, ATileTakesWhatIsANumber) {
  const RefineCase c{.n_tokens = 300, .head_dim = 64, .heads = {kOpen, kMeans}};
  RefineInputs in(c, dtype());
  const auto expected = attend_refine(*backend, dtype(), dtype(), c, in);
  in.queries[static_cast<size_t>(230 * c.n_heads * c.head_dim)] = std::nanf("");
  EXPECT_EQ(attend_refine(*backend, dtype(), dtype(), c, in)->opened, expected->opened);
}

TEST_P(EveryImplementation, RefineAtDeltaZeroEqualsDenseAttention) {
  for (RefineCase c : every(4, all_cases())) {
    c.heads.assign(static_cast<size_t>(c.n_kv_heads), kOpen);
    c.members = CacheKind::kExact;  // int8 rounds what is opened
    SCOPED_TRACE(testing::PrintToString(c));
    const RefineInputs in(c, dtype());
    expect_answer(attend_refine(*backend, dtype(), dtype(), c, in), dtype(), c, in,
                  attend_dense(*reference, c.keys_case(), in.keys_inputs(c)));
  }
}

TEST_P(EveryImplementation, RefineWithPagesOfOneTokenEqualsDenseAttention) {
  for (RefineCase c : every(6, all_cases(), 2)) {
    c.heads.assign(static_cast<size_t>(c.n_kv_heads), kMeans);
    c.page = 1;
    c.rare = true;
    SCOPED_TRACE(testing::PrintToString(c));
    const RefineInputs in(c, dtype());
    expect_answer(attend_refine(*backend, dtype(), dtype(), c, in), dtype(), c, in,
                  attend_dense(*reference, c.keys_case(), in.keys_inputs(c)));
  }
}

TEST_P(EveryImplementation, RefineAtDeltaInfinityEqualsAttentionOnMeans) {
  for (RefineCase c : every(4, causal_cases(), 2)) {
    c.heads.assign(static_cast<size_t>(c.n_kv_heads), kMeans);
    c.page = c.segment;
    c.early = 0;
    c.sinks = 0;
    c.rare = true;
    SCOPED_TRACE(testing::PrintToString(c));
    const RefineInputs in(c, dtype());
    const auto got = attend_refine(*backend, dtype(), dtype(), c, in);
    if (!got) continue;
    expect_answer(got, dtype(), c, in, attend_means(c, in, dtype(), true));
    EXPECT_EQ(got->opened, std::vector<int64_t>(got->opened.size()));
  }
}

TEST_P(EveryImplementation, RefineWindowHeadsEqualDenseAttentionUnderTheirMask) {
  for (RefineCase c : every(4, causal_cases(), 1)) {
    c.heads.assign(static_cast<size_t>(c.n_kv_heads), kWindow);
    SCOPED_TRACE(testing::PrintToString(c));
    const RefineInputs in(c, dtype());
    expect_answer(attend_refine(*backend, dtype(), dtype(), c, in), dtype(), c, in,
                  attend_means(c, in, dtype(), false));
  }
}

// Anywhere and token by token where queries decide for themselves, else between tiles.
TEST_P(EveryBackend, AnyCutBetweenTilesGivesTheSameRefineAttention) {
  for (const RefineCase& given : sampled(every(2, causal_cases(), 1), 2)) {
    SCOPED_TRACE(testing::PrintToString(given));
    const RefineInputs in(given, dtype());
    const RefineCase c = with_clear_delta(*reference, dtype(), given, in);
    std::vector<int64_t> cuts;
    for (const int64_t cut : {1, 2, 7, 16, 33, 64, 65, 128, 131, 192, 256, 257, 300, 512, 550})
      if (cut < c.n_tokens && cut % c.tile == 0) cuts.push_back(cut);
    if (c.tile == 1)
      for (int64_t t = cuts.empty() ? 1 : cuts.back() + 1; t < c.n_tokens; ++t) cuts.push_back(t);
    const RefineAnswer expected = expected_refine(*reference, dtype(), c, in);
    const auto got = attend_refine(*backend, dtype(), dtype(), c, in, cuts);
    expect_answer(got, dtype(), c, in, expected);
  }
}

// Single queries decide for themselves even where tiles are asked for.
TEST_P(EveryBackend, RefineDecodingAgreesWithTheReference) {
  for (RefineCase c : {kCausal[5], kCausal[9], kCausal[12], kCausal[17]}) {
    SCOPED_TRACE(testing::PrintToString(c));
    const RefineInputs in(c, dtype());
    std::vector<int64_t> cuts;
    for (int64_t t = c.n_tokens / c.tile * c.tile; t < c.n_tokens; ++t) cuts.push_back(t);
    const RefineAnswer expected = expected_refine(*reference, dtype(), c, in, cuts);
    const auto got = attend_refine(*backend, dtype(), dtype(), c, in, cuts);
    expect_answer(got, dtype(), c, in, expected);
  }
}

// What was settled early serves decoding alone: a pass of tiles that follows sees the open segment
// exactly, and closes it as if it had never been split.
TEST_P(EveryBackend, TilesAfterDecodingSeeTheOpenSegmentExactly) {
  for (const int64_t decoded : {3, 130, 192}) {
    const RefineCase c{.n_tokens = 700, .head_dim = 64, .segment = 256, .early = 64, .delta = 0.1};
    SCOPED_TRACE(decoded);
    const RefineInputs in(c, dtype());
    std::vector<int64_t> cuts;
    for (int64_t t = 256; t <= 256 + decoded; ++t) cuts.push_back(t);
    if (decoded < 192) cuts.push_back(448);  // ends at a tile's border
    cuts.push_back(512);
    const RefineAnswer expected = expected_refine(*reference, dtype(), c, in, cuts);
    expect_answer(attend_refine(*backend, dtype(), dtype(), c, in, cuts), dtype(), c, in, expected);
  }
}

TEST_P(EveryImplementation, TheFutureDoesNotTouchPastRefineAttention) {
  for (const RefineCase& c : every(4, causal_cases()))
    for (const int64_t end : {2 * c.n_tokens / 3, c.n_tokens - 1}) {
      if (end < c.tile) continue;
      const int64_t past = end / c.tile * c.tile;
      SCOPED_TRACE(testing::PrintToString(c) + ", past " + std::to_string(past) + " tokens");
      const RefineInputs in(c, dtype()), other(c, dtype(), 77);
      RefineInputs changed = in;
      const auto replace = [&](std::vector<float>& to, const std::vector<float>& from,
                               int64_t width, float factor) {
        for (auto i = static_cast<size_t>(past * width); i < to.size(); ++i)
          to[i] = factor * from[i];
      };
      // Larger numbers than before, so that a maximum over the future would show.
      const int64_t width = c.n_heads * c.head_dim;
      replace(changed.queries, other.queries, width, 4);
      replace(changed.keys, other.keys, c.n_kv_heads * c.head_dim, 16);
      replace(changed.values, other.values, c.n_kv_heads * c.head_dim, 1024);
      const auto got = attend_refine(*backend, dtype(), dtype(), c, changed);
      if (!got) continue;
      const auto before =
          rows_of(attend_refine(*backend, dtype(), dtype(), c, in)->out, width, 0, past);
      // On a GPU 128 queries pass over what any of them opened: what others opened is masked, but
      // changes the order in which a query's sums are rounded.
      const int64_t exact = backend->device() == Device::kCuda ? past / 128 * 128 : past;
      EXPECT_SAME_BITS(rows_of(got->out, width, 0, exact), rows_of(before, width, 0, exact));
      EXPECT_CLOSE(rows_of(got->out, width, 0, past), before,
                   refine_bounds(dtype(), c, in, before));
    }
}

// Every token is kept once, and means and statistics besides.
TEST_P(EveryBackend, RefineKeepsEveryTokenOnce) {
  const RefineCase c{.n_tokens = 700, .head_dim = 64};
  const RefineInputs in(c, dtype());
  const auto attention = backend->make_refine_attention(c.spec(dtype()));
  attend_pass(*attention, *backend, dtype(), c, in, 0, 601);
  const CacheBytes bytes = attention->bytes();
  const int64_t row = 2 * c.n_kv_heads * c.head_dim * element_bytes(dtype());
  EXPECT_GE(bytes.exact + bytes.clusters, 601 * row);
  EXPECT_LE(bytes.exact + bytes.clusters, 704 * (row + row / 16 + 64));
}

TEST_P(EveryImplementation, ResetForgetsTheClusters) {
  for (const RefineCase& c :
       {RefineCase{.n_tokens = 400, .head_dim = 64},
        RefineCase{.n_tokens = 400, .head_dim = 64, .early = 32, .tile = 1}}) {
    const RefineInputs in(c, dtype()), other(c, dtype(), 5);
    const auto attention = backend->make_refine_attention(c.spec(dtype()));
    attend_pass(*attention, *backend, dtype(), c, other, 0, 320);
    attention->reset();
    EXPECT_TRUE(attention->opened().empty());
    EXPECT_SAME_BITS(attend_pass(*attention, *backend, dtype(), c, in, 0, c.n_tokens),
                     attend_refine(*backend, dtype(), dtype(), c, in)->out);
  }
}

}  // namespace
}  // namespace sluice::impl::test
