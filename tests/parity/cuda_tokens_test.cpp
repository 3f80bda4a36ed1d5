// What only a device does: so many tiles of queries that their keys are not split.

#include <array>

#include "parity/keys_case.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

// The kinds of heads in rotation, over so many sets, but no window heads where all keys are seen.
void mix_heads(KeysCase& c, size_t n_sets) {
  constexpr HeadKeys kKinds[] = {{HeadKind::kClusters, FarKey::kCentroid, 0},
                                 {HeadKind::kClusters, FarKey::kValues, 1},
                                 {HeadKind::kClusters, FarKey::kOwn, 1},
                                 {HeadKind::kWindow, FarKey::kCentroid, 0},
                                 {HeadKind::kDense, FarKey::kCentroid, 0}};
  c.heads.clear();
  for (int64_t head = 0; head < c.n_kv_heads; ++head) {
    HeadKeys kind = kKinds[head % 5];
    kind.set = std::min(kind.set, n_sets - 1);
    if (!c.causal && kind.kind == HeadKind::kWindow) kind.kind = HeadKind::kClusters;
    c.heads.push_back(kind);
  }
}

TEST_P(EveryBackend, KeysOfManyTilesAgreeWithTheReference) {
  std::vector<KeysCase> cases = {
      {.n_tokens = 333, .head_dim = 64, .n_heads = 30, .n_kv_heads = 30, .window = 32, .block = 16},
      {.n_tokens = 333,
       .head_dim = 128,
       .n_heads = 60,
       .n_kv_heads = 30,
       .window = 16,
       .block = 16},
      {.n_tokens = 333,
       .head_dim = 256,
       .n_heads = 30,
       .n_kv_heads = 30,
       .window = 32,
       .block = 16},
      {.n_tokens = 333, .head_dim = 80, .n_heads = 90, .n_kv_heads = 30, .window = 0, .block = 16},
      {.n_tokens = 333,
       .head_dim = 72,
       .n_heads = 150,
       .n_kv_heads = 30,
       .window = 64,
       .block = 64},
      {.n_tokens = 700,
       .head_dim = 64,
       .n_heads = 60,
       .n_kv_heads = 60,
       .window = 128,
       .block = 128},
      {.n_tokens = 150, .head_dim = 128, .n_heads = 300, .n_kv_heads = 150, .causal = false},
  };
  for (KeysCase& c : cases)
    for (const size_t n_sets : {1, 2}) {
      SCOPED_TRACE(testing::PrintToString(c));
      c.set.sinks = c.causal ? 4 : 0;
      mix_heads(c, n_sets);
      const KeysInputs in(c, dtype());
      const auto expected = attend_keys(*reference, DType::kF32, c, in);
      EXPECT_CLOSE(attend_keys(*backend, dtype(), c, in), expected,
                   keys_bounds(*reference, dtype(), c, in, expected));
    }
}

// Clusters of hundreds of members are summed in parts.
TEST_P(EveryBackend, KeysOfLongClustersAgreeWithTheReference) {
  KeysCase c{.n_tokens = 900,
             .head_dim = 64,
             .n_heads = 10,
             .n_kv_heads = 5,
             .window = 64,
             .block = 32,
             .set = {.reps = 0.012, .exempt = 0.01, .uncovered = 0}};
  mix_heads(c, 2);
  const std::array<int64_t, 2> pads = {0, 1};
  for (const auto& [pad, reps] : thinned(combinations(pads, std::array{0.012, 0.004}), 3)) {
    c.pad = pad;
    c.set.reps = reps;
    const KeysInputs in(c, dtype());
    const auto expected = attend_keys(*reference, DType::kF32, c, in);
    const auto bounds = keys_bounds(*reference, dtype(), c, in, expected);
    EXPECT_CLOSE(attend_keys(*backend, dtype(), c, in), expected, bounds);
    EXPECT_CLOSE(attend_keys(*backend, dtype(), c, in, {130, 131, 500, 501, 502, 760}), expected,
                 bounds);
    // Clusters of the cache that get hundreds of members in one pass, and go on after it.
    const auto cut = attend_keys(*backend, dtype(), c, in, {300, 800});
    EXPECT_CLOSE(cut, expected, bounds);
    EXPECT_SAME_BITS(attend_keys(*backend, dtype(), c, in, {300, 800}), cut);
  }
}

// The same of so many heads that keys are not split.
TEST_P(EveryBackend, LongClustersOfManyHeadsAgreeWithTheReference) {
  KeysCase c{.n_tokens = 900,
             .head_dim = 64,
             .n_heads = 20,
             .n_kv_heads = 20,
             .window = 64,
             .block = 32,
             .set = {.reps = 0.012, .exempt = 0.01, .uncovered = 0}};
  mix_heads(c, 1);
  const KeysInputs in(c, dtype());
  const auto expected = attend_keys(*reference, DType::kF32, c, in);
  const auto bounds = keys_bounds(*reference, dtype(), c, in, expected);
  EXPECT_CLOSE(attend_keys(*backend, dtype(), c, in), expected, bounds);
  const auto cut = attend_keys(*backend, dtype(), c, in, {300, 800});
  EXPECT_CLOSE(cut, expected, bounds);
  EXPECT_SAME_BITS(attend_keys(*backend, dtype(), c, in, {300, 800}), cut);
}

// Sequences of many tiles, which the reference is too slow for: every buffer of the kernels is used
// many times. Rows that are not aligned go through the plain kernel, which the reference checks.
// Both round weights, means and results to bf16 or less, independently, by less than 2^-9 in the
// root mean square: as for dense attention (cuda_attend_test.cpp) they agree to 2^-8 of the whole.
TEST_P(EveryBackend, LongKeysAgreeWithThePlainKernel) {
  if (dtype() != DType::kBF16) GTEST_SKIP() << "f32 has the plain kernel only";
  std::vector<KeysCase> cases = {
      {.n_tokens = 2100, .head_dim = 64, .n_heads = 15, .n_kv_heads = 15},
      {.n_tokens = 2100, .head_dim = 128, .n_heads = 20, .n_kv_heads = 10, .pad = 8},
      {.n_tokens = 1601, .head_dim = 256, .n_heads = 10, .n_kv_heads = 10},
      {.n_tokens = 1777, .head_dim = 80, .n_heads = 15, .n_kv_heads = 5, .pad = 8},
      {.n_tokens = 1500, .head_dim = 128, .n_heads = 60, .n_kv_heads = 5},
      {.n_tokens = 1500, .head_dim = 128, .n_heads = 10, .n_kv_heads = 10, .causal = false},
  };
  const std::array<std::pair<double, size_t>, 3> shares = {{{0.9, 1}, {0.9, 2}, {0.2, 1}}};
  for (auto [c, share] : thinned(combinations(cases, shares), 7)) {
    const auto [reps, n_sets] = share;
    c.window = c.block = 128;
    mix_heads(c, n_sets);
    c.set = {.reps = reps, .exempt = 0.01, .uncovered = 0.01, .sinks = c.causal ? 4 : 0};
    SCOPED_TRACE(testing::PrintToString(c));
    const KeysInputs in(c, dtype());
    KeysCase plain = c;
    plain.pad = 1;
    const auto expected = attend_keys(*backend, dtype(), plain, in);
    const auto whole = attend_keys(*backend, dtype(), c, in);
    EXPECT_LE(relative_distance(whole, expected), 0x1p-8);
    EXPECT_SAME_BITS(attend_keys(*backend, dtype(), c, in), whole);
    if (!c.causal) continue;
    const auto cuts = thinned<int64_t>({700, 701, 831, 832, 1400, 1410, 1411}, 3);
    EXPECT_LE(relative_distance(attend_keys(*backend, dtype(), c, in, cuts), expected), 0x1p-8);
  }
}

// More tokens, clusters and rows of lists than are worked on at one time. Pieces have other sums of
// the same members, so their means and results are rounded otherwise, as above; f32 to fewer than
// 2^10 units. Members find their places in any order, which changes nothing.
TEST_P(EveryBackend, ALongPassGivesWhatItsPiecesGive) {
  struct Long {
    int64_t n_tokens;
    std::vector<int64_t> cuts;
  };
  for (const auto& [n_tokens, cuts] : {Long{17000, {8000, 15000}}, Long{70000, {30000, 60000}}}) {
    const KeysCase c{.n_tokens = n_tokens,
                     .head_dim = 16,
                     .window = 128,
                     .block = 128,
                     .set = {.reps = 0.05, .exempt = 0.01, .uncovered = 0.01}};
    SCOPED_TRACE(testing::PrintToString(c));
    const KeysInputs in(c, dtype());
    const auto whole = attend_keys(*backend, dtype(), c, in);
    if (!kFewCases) {
      EXPECT_SAME_BITS(attend_keys(*backend, dtype(), c, in), whole);
    }
    EXPECT_LE(relative_distance(attend_keys(*backend, dtype(), c, in, cuts), whole),
              dtype() == DType::kBF16 ? 0x1p-8 : 0x1p-14);
  }
}

// In passes that end at the cuts and at the end; of the tokens that stand for themselves.
std::vector<float> attend_among_reps(Backend& backend, const KeysCase& c, const KeysInputs& in,
                                     std::vector<int64_t> cuts = {}) {
  const auto attention = backend.make_reps_attention({.n_heads = c.n_heads,
                                                      .n_kv_heads = c.n_kv_heads,
                                                      .head_dim = c.head_dim,
                                                      .dtype = DType::kBF16,
                                                      .scale = c.scale(),
                                                      .causal = c.causal});
  cuts.push_back(c.n_tokens);
  std::vector<float> answers;
  int64_t begin = 0;
  for (const int64_t end : cuts) {
    const TokenSet set = start_of(in.sets[0], end);
    const auto stands = [&](int64_t t) {
      return set.status[static_cast<size_t>(t)] != TokenStatus::kRedundant;
    };
    int64_t n = 0;
    for (int64_t t = begin; t < end; ++t) n += stands(t) ? 1 : 0;
    const auto rows = [&](const std::vector<float>& all, int64_t n_heads) {
      std::vector<float> own;
      const int64_t width = n_heads * c.head_dim;
      for (int64_t t = begin; t < end; ++t)
        if (stands(t))
          own.insert(own.end(), all.begin() + t * width, all.begin() + (t + 1) * width);
      return DeviceTensor(backend, DType::kBF16, {n, n_heads, c.head_dim}, own, c.pad);
    };
    const DeviceTensor queries = rows(in.queries, c.n_heads), keys = rows(in.keys, c.n_kv_heads),
                       values = rows(in.values, c.n_kv_heads);
    const DeviceTensor out = unwritten(backend, DType::kBF16, {n, c.n_heads, c.head_dim}, c.pad);
    attention->attend({.queries = queries.view(),
                       .keys = keys.view(),
                       .values = values.view(),
                       .set = &set,
                       .first_token = begin,
                       .out = out.view()});
    const auto part = out.values();
    answers.insert(answers.end(), part.begin(), part.end());
    begin = end;
  }
  return answers;
}

TEST_P(EveryBackend, LongRepsAgreeWithThePlainKernel) {
  if (dtype() != DType::kBF16) GTEST_SKIP() << "f32 has the plain kernel only";
  std::vector<KeysCase> cases = {
      {.n_tokens = 4000, .head_dim = 64, .n_heads = 15, .n_kv_heads = 15},
      {.n_tokens = 4000, .head_dim = 128, .n_heads = 20, .n_kv_heads = 10, .pad = 8},
      {.n_tokens = 3000, .head_dim = 256, .n_heads = 10, .n_kv_heads = 10},
      {.n_tokens = 2000, .head_dim = 80, .n_heads = 10, .n_kv_heads = 5, .pad = 8},
      {.n_tokens = 2000, .head_dim = 192, .n_heads = 6, .n_kv_heads = 6},
      {.n_tokens = 2000, .head_dim = 128, .n_heads = 60, .n_kv_heads = 5, .causal = false},
  };
  for (auto [c, reps] : thinned(combinations(cases, std::array{0.9, 0.3, 0.05}), 4)) {
    c.set = {.reps = reps, .exempt = 0.01, .uncovered = 0.01};
    SCOPED_TRACE(testing::PrintToString(c));
    const KeysInputs in(c, dtype());
    KeysCase plain = c;
    plain.pad = 1;
    const auto expected = attend_among_reps(*backend, plain, in);
    EXPECT_LE(relative_distance(attend_among_reps(*backend, c, in), expected), 0x1p-8);
    if (!c.causal) continue;
    const std::vector<int64_t> cuts = {700, 701, 1500, 1510};
    EXPECT_LE(relative_distance(attend_among_reps(*backend, c, in, cuts), expected), 0x1p-8);
  }
}

// More counts than are kept at one time, in one pass and in several, in bytes and, where a cluster
// gets too many members at once, as biases; as above.
TEST_P(EveryBackend, ManyRepsGiveWhatTheirPiecesGive) {
  if (dtype() != DType::kBF16) GTEST_SKIP() << "f32 takes too long";
  const KeysCase c{.n_tokens = 26000,
                   .head_dim = 16,
                   .n_heads = 8,
                   .n_kv_heads = 1,
                   .set = {.reps = 0.95, .exempt = 0.01, .uncovered = 0.01}};
  KeysInputs in(c, dtype());
  for (const int64_t n_crowded : {0, 400}) {
    SCOPED_TRACE(n_crowded);
    TokenSet& set = in.sets[0];
    set = random_set(1000, c.set, 7);
    crowd(set, n_crowded);
    grow(set, c.n_tokens, c.set, 8);
    ASSERT_GT(set.n_clusters * set.n_clusters * c.n_heads / 128, int64_t{1} << 25);
    EXPECT_LE(relative_distance(attend_among_reps(*backend, c, in),
                                attend_among_reps(*backend, c, in, {9000, 9130, 17000})),
              0x1p-8);
  }
}

}  // namespace
}  // namespace sluice::impl::test
