// Mode `keys` against the reference, and the identities of docs/algorithm.md, section 3.

#include "parity/keys_case.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

constexpr HeadKeys kCentroids{HeadKind::kClusters, FarKey::kCentroid, 0};
constexpr HeadKeys kValues{HeadKind::kClusters, FarKey::kValues, 1};
constexpr HeadKeys kOwn{HeadKind::kClusters, FarKey::kOwn, 0};
constexpr HeadKeys kOwnOfFew{HeadKind::kClusters, FarKey::kOwn, 1};
constexpr HeadKeys kWindow{HeadKind::kWindow, FarKey::kCentroid, 0};
constexpr HeadKeys kDense{HeadKind::kDense, FarKey::kCentroid, 0};

// Every far kind, head size and length; borders within and across tiles; groups of query heads.
const KeysCase kCausal[] = {
    {.n_tokens = 1, .head_dim = 16},
    {.n_tokens = 37, .head_dim = 16, .window = 8, .block = 8},
    {.n_tokens = 37, .head_dim = 64, .window = 4, .block = 1, .heads = {kCentroids, kValues}},
    {.n_tokens = 37, .head_dim = 80, .window = 0, .block = 4, .heads = {kOwn, kCentroids}},
    {.n_tokens = 37, .head_dim = 256, .n_heads = 4, .window = 16, .block = 16, .pad = 3},
    {.n_tokens = 129, .head_dim = 16, .heads = {kValues, kOwn}, .set = {.sinks = 4}, .size = 10},
    {.n_tokens = 129, .head_dim = 64, .n_heads = 6, .heads = {kWindow, kCentroids}, .pad = 5},
    {.n_tokens = 129, .head_dim = 80, .window = 16, .heads = {kOwnOfFew, kDense}},
    {.n_tokens = 129, .head_dim = 128, .n_heads = 4, .n_kv_heads = 1, .heads = {kCentroids}},
    {.n_tokens = 129, .head_dim = 256, .n_heads = 1, .n_kv_heads = 1, .heads = {kValues}},
    {.n_tokens = 300,
     .head_dim = 64,
     .n_heads = 6,
     .n_kv_heads = 6,
     .window = 64,
     .block = 32,
     .heads = {kCentroids, kValues, kOwn, kWindow, kDense, kOwnOfFew},
     .set = {.reps = 0.1, .sinks = 4}},
    {.n_tokens = 1000, .head_dim = 64, .window = 128, .block = 128, .set = {.sinks = 4}},
    {.n_tokens = 1000,
     .head_dim = 128,
     .n_heads = 1,
     .n_kv_heads = 1,
     .window = 256,
     .block = 64,
     .heads = {kValues},
     .set = {.reps = 0.9}},
    {.n_tokens = 1000,
     .head_dim = 16,
     .window = 128,
     .block = 128,
     .heads = {kWindow, kOwn},
     .set = {.reps = 0.02, .exempt = 0, .uncovered = 0}},
    // Blocks larger than a packed block of keys.
    {.n_tokens = 500, .head_dim = 16, .window = 141, .block = 141},
    {.n_tokens = 700,
     .head_dim = 64,
     .n_heads = 1,
     .n_kv_heads = 1,
     .window = 0,
     .block = 300,
     .heads = {kCentroids}},
};

const KeysCase kEncoders[] = {
    {.n_tokens = 37, .head_dim = 16, .causal = false},
    {.n_tokens = 37, .head_dim = 80, .heads = {kOwn, kDense}, .causal = false},
    {.n_tokens = 129,
     .head_dim = 64,
     .n_heads = 4,
     .heads = {kCentroids, kValues},
     .causal = false},
    {.n_tokens = 129, .head_dim = 256, .n_heads = 1, .n_kv_heads = 1, .causal = false, .pad = 7},
    {.n_tokens = 300, .head_dim = 128, .n_heads = 1, .n_kv_heads = 1, .causal = false},
};

// Under a sanitizer the longest take minutes and touch no memory that those of 700 do not.
std::vector<KeysCase> causal_cases() {
  std::vector<KeysCase> cases;
  for (const KeysCase& c : kCausal)
    if (!kSanitized || c.n_tokens < 1000) cases.push_back(c);
  return cases;
}

std::vector<KeysCase> all_cases() {
  std::vector<KeysCase> all = causal_cases();
  all.insert(all.end(), std::begin(kEncoders), std::end(kEncoders));
  return all;
}

// With expected from an identity instead of the reference's own answer.
void expect_answer(Backend& backend, Backend& reference, DType dtype, const KeysCase& c,
                   const KeysInputs& in, const std::vector<float>& expected) {
  EXPECT_CLOSE(attend_keys(backend, dtype, c, in), expected,
               keys_bounds(reference, dtype, c, in, expected));
}

TEST_P(EveryBackend, KeysAttentionAgreesWithTheReference) {
  for (const KeysCase& c : all_cases()) {
    SCOPED_TRACE(testing::PrintToString(c));
    const KeysInputs in(c, dtype());
    expect_answer(*backend, *reference, dtype(), c, in,
                  attend_keys(*reference, DType::kF32, c, in));
  }
}

// Five tokens, one number per head: token 1 belongs to token 0, and the last query has F = 2.
TEST_P(EveryImplementation, FarKeysAreWhatTheDefinitionSays) {
  KeysCase c{.n_tokens = 5, .head_dim = 1, .n_heads = 1, .n_kv_heads = 1, .window = 2, .block = 2};
  struct Far {
    FarKey kind;
    double key, value;
  };
  for (const Far& far :
       {Far{FarKey::kCentroid, 0.75, 5}, Far{FarKey::kValues, 0.5, 5}, Far{FarKey::kOwn, 0.5, 8}}) {
    c.heads = {{HeadKind::kClusters, far.kind, 0}};
    KeysInputs in(c, dtype());
    in.queries = {1, 1, 1, 1, 2};
    in.keys = {0.5, 1, -1, 0.25, -0.5};
    in.values = {8, 2, -4, 1, 16};
    in.sets[0].status = {TokenStatus::kRepresentative, TokenStatus::kRedundant,
                         TokenStatus::kRepresentative, TokenStatus::kRedundant,
                         TokenStatus::kUncovered};
    in.sets[0].owner = {0, 0, 2, 0, 4};
    in.sets[0].cluster = {0, 0, 1, 0, 2};
    in.sets[0].n_clusters = 3;
    const double weights[] = {2 * std::exp(2 * far.key), std::exp(-2.0), std::exp(0.5),
                              std::exp(-1.0)};
    const double total = weights[0] + weights[1] + weights[2] + weights[3];
    const double last =
        (weights[0] * far.value - 4 * weights[1] + weights[2] + 16 * weights[3]) / total;
    auto expected = attend_dense(*reference, c, in);  // the queries before have F = 0
    expected[4] = static_cast<float>(last);
    expect_answer(*backend, *reference, dtype(), c, in, expected);
  }
}

TEST_P(EveryImplementation, TauZeroKeysEqualDenseAttention) {
  for (const KeysCase& c : sampled(thinned(all_cases(), 3), 2)) {
    if (std::any_of(c.heads.begin(), c.heads.end(),
                    [](const HeadKeys& head) { return head.kind == HeadKind::kWindow; }))
      continue;
    SCOPED_TRACE(testing::PrintToString(c));
    KeysInputs in(c, dtype());
    for (TokenSet& set : in.sets) set = all_tokens(c.n_tokens);
    expect_answer(*backend, *reference, dtype(), c, in, attend_dense(*reference, c, in));
  }
}

// All members of a cluster, in every set, have the key and value of its own token.
TEST_P(EveryImplementation, MergedDuplicatesEqualDenseAttention) {
  for (KeysCase c : sampled(thinned(all_cases(), 3), 2)) {
    for (HeadKeys& head : c.heads) {
      head.set = 0;
      if (head.kind == HeadKind::kWindow) head.kind = HeadKind::kClusters;
    }
    SCOPED_TRACE(testing::PrintToString(c));
    KeysInputs in(c, dtype());
    in.sets[1] = in.sets[0];
    const int64_t width = c.n_kv_heads * c.head_dim;
    for (int64_t t = 0; t < c.n_tokens; ++t) {
      if (in.sets[0].status[static_cast<size_t>(t)] != TokenStatus::kRedundant) continue;
      const int64_t from = in.sets[0].owner[static_cast<size_t>(t)] * width;
      std::copy_n(in.keys.begin() + from, width, in.keys.begin() + t * width);
      std::copy_n(in.values.begin() + from, width, in.values.begin() + t * width);
    }
    expect_answer(*backend, *reference, dtype(), c, in, attend_dense(*reference, c, in));
  }
}

TEST_P(EveryImplementation, AWindowOverEverythingEqualsDenseAttention) {
  for (KeysCase c : sampled(thinned(causal_cases(), 3), 2)) {
    c.window = c.block * ((c.n_tokens + c.block - 1) / c.block);
    SCOPED_TRACE(testing::PrintToString(c));
    const KeysInputs in(c, dtype());
    expect_answer(*backend, *reference, dtype(), c, in, attend_dense(*reference, c, in));
  }
}

// Float64 over the keys the mask lets through.
std::vector<float> window_attention(const KeysCase& c, const KeysInputs& in) {
  std::vector<float> out;
  const int64_t width = c.n_kv_heads * c.head_dim, group = c.n_heads / c.n_kv_heads;
  for (int64_t t = 0; t < c.n_tokens; ++t)
    for (int64_t head = 0; head < c.n_heads; ++head) {
      const auto query = in.queries.begin() + (t * c.n_heads + head) * c.head_dim;
      std::vector<double> sum(static_cast<size_t>(c.head_dim));
      double total = 0;
      for (int64_t i = 0; i <= t; ++i) {
        if (i < border_of(c, t) &&
            in.sets[0].status[static_cast<size_t>(i)] != TokenStatus::kExempt)
          continue;
        const int64_t at = i * width + head / group * c.head_dim;
        const double weight =
            std::exp(std::inner_product(query, query + c.head_dim, in.keys.begin() + at, 0.0) *
                     double{c.scale()});
        total += weight;
        for (int64_t d = 0; d < c.head_dim; ++d)
          sum[static_cast<size_t>(d)] += weight * in.values[static_cast<size_t>(at + d)];
      }
      for (const double x : sum) out.push_back(static_cast<float>(x / total));
    }
  return out;
}

TEST_P(EveryImplementation, WindowHeadsEqualDenseAttentionUnderTheirMask) {
  for (KeysCase c : sampled(thinned(causal_cases(), 3), 2)) {
    c.heads.assign(static_cast<size_t>(c.n_kv_heads), kWindow);
    c.size = 1;  // so that exp needs no largest score
    SCOPED_TRACE(testing::PrintToString(c));
    const KeysInputs in(c, dtype());
    expect_answer(*backend, *reference, dtype(), c, in, window_attention(c, in));
  }
}

// The cuts fall on borders of blocks, one token off them and, at the end, between all tokens.
TEST_P(EveryImplementation, AnyCutGivesTheSameKeysAttention) {
  for (const KeysCase& c : thinned(causal_cases(), 4)) {
    SCOPED_TRACE(testing::PrintToString(c));
    std::vector<int64_t> cuts;
    for (const int64_t cut : {1, 2, 16, 33, 64, 65, 128, 300, 512, 899})
      if (cut < c.n_tokens) cuts.push_back(cut);
    const int64_t decode = std::max(c.n_tokens - 40, cuts.empty() ? 0 : cuts.back());
    for (int64_t t = decode + 1; t < c.n_tokens; ++t) cuts.push_back(t);
    const KeysInputs in(c, dtype());
    const auto expected = attend_keys(*reference, DType::kF32, c, in);
    EXPECT_CLOSE(attend_keys(*backend, dtype(), c, in, thinned(cuts, 10)), expected,
                 keys_bounds(*reference, dtype(), c, in, expected));
  }
}

TEST_P(EveryImplementation, TheFutureDoesNotTouchPastKeysAttention) {
  for (const KeysCase& c : thinned(causal_cases(), 5))
    for (const int64_t last : {int64_t{0}, c.n_tokens / 2, c.n_tokens - 2}) {
      if (last < 0 || last + 1 >= c.n_tokens) continue;
      SCOPED_TRACE(testing::PrintToString(c) + ", past up to token " + std::to_string(last));
      const KeysInputs in(c, dtype());
      KeysInputs changed = in;
      const KeysInputs other(c, dtype(), 77);
      const auto replace = [&](std::vector<float>& to, const std::vector<float>& from,
                               int64_t width, float factor) {
        for (auto i = static_cast<size_t>((last + 1) * width); i < to.size(); ++i)
          to[i] = factor * from[i];
      };
      // Larger numbers than before, so that a maximum over the future would show.
      const int64_t width = c.n_heads * c.head_dim;
      replace(changed.queries, other.queries, width, 1);
      replace(changed.keys, other.keys, c.n_kv_heads * c.head_dim, 64);
      replace(changed.values, other.values, c.n_kv_heads * c.head_dim, 1024);
      for (TokenSet& set : changed.sets) {
        set = start_of(set, last + 1);
        grow(set, c.n_tokens, {.reps = 0.5}, 99);
      }
      EXPECT_SAME_BITS(rows_of(attend_keys(*backend, dtype(), c, changed), width, 0, last + 1),
                       rows_of(attend_keys(*backend, dtype(), c, in), width, 0, last + 1));
    }
}

// The cache is what a compressed head is for: tokens before F leave nothing but their clusters.
TEST_P(EveryBackend, OnlyRecentTokensAreKeptExactly) {
  const KeysCase c{.n_tokens = 700, .head_dim = 64, .window = 32, .block = 16};
  const KeysInputs in(c, dtype());
  const auto attention = backend->make_keys_attention(c.spec(dtype()));
  const auto expect_small = [&](int64_t n_tokens) {
    SCOPED_TRACE(n_tokens);
    const int64_t border = border_of(c, n_tokens);
    const int64_t row = c.head_dim * element_bytes(dtype());
    EXPECT_LE(attention->bytes().exact, 2 * c.n_kv_heads * (n_tokens - border) * row);
    // Two sums and a count, for each cluster of each head's set.
    int64_t n_clusters = 0;
    for (const TokenSet& set : in.sets) n_clusters += start_of(set, border).n_clusters;
    EXPECT_LE(attention->bytes().clusters, n_clusters * (2 * c.head_dim + 1) * 4);
  };
  attend_pass(*attention, *backend, dtype(), c, in, 0, 601);
  expect_small(601);
  for (int64_t t = 601; t < (kFewCases ? 640 : c.n_tokens); t += 3) {
    attend_pass(*attention, *backend, dtype(), c, in, t, t + 3);
    expect_small(t + 3);
  }
}

// With these, answers over two halves of the keys can be joined. Relative errors of the sums are
// what is between the logs; the log itself is rounded.
TEST_P(EveryBackend, KeysAttentionTellsTheLogOfItsSums) {
  for (const KeysCase& c : thinned(all_cases(), 2)) {
    SCOPED_TRACE(testing::PrintToString(c));
    const KeysInputs in(c, dtype());
    const auto log_sums = [&](Backend& on, DType type) {
      const DeviceTensor queries(on, type, c.queries(), in.queries, c.pad);
      const DeviceTensor keys(on, type, c.keys(), in.keys, c.pad);
      const DeviceTensor values(on, type, c.keys(), in.values, c.pad);
      const DeviceTensor out = unwritten(on, type, c.queries(), c.pad);
      const DeviceTensor sums = unwritten(on, DType::kF32, {c.n_tokens, c.n_heads}, c.pad);
      on.make_keys_attention(c.spec(type))
          ->attend({.queries = queries.view(),
                    .keys = keys.view(),
                    .values = values.view(),
                    .sets = in.sets,
                    .out = out.view(),
                    .log_sums = sums.view()});
      return sums.values();
    };
    const auto expected = log_sums(*reference, DType::kF32);
    const double error = attention_error(
        dtype(), {.head_dim = c.head_dim,
                  .n_keys = c.n_tokens,
                  .score = largest_row_norm(in.queries, c.head_dim) *
                           largest_row_norm(in.keys, c.head_dim) * double{c.scale()},
                  .means = true});
    std::vector<double> bounds;
    for (const float x : expected)
      bounds.push_back(error + 4 * kF32Unit * (std::abs(double{x}) + 1));
    EXPECT_CLOSE(log_sums(*backend, dtype()), expected, bounds);
  }
}

TEST_P(EveryImplementation, ResetForgetsTheKeys) {
  const KeysCase c{.n_tokens = 129, .head_dim = 64};
  const KeysInputs in(c, dtype()), other(c, dtype(), 5);
  const auto attention = backend->make_keys_attention(c.spec(dtype()));
  attend_pass(*attention, *backend, dtype(), c, other, 0, 100);
  EXPECT_GT(attention->bytes().exact, 0);
  attention->reset();
  EXPECT_SAME_BITS(attend_pass(*attention, *backend, dtype(), c, in, 0, c.n_tokens),
                   attend_keys(*backend, dtype(), c, in));
}

}  // namespace
}  // namespace sluice::impl::test
