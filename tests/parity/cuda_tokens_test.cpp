// What only a device does: several chunks of tokens in one pass of selection, and so many tiles of
// queries that their keys are not split.

#include "parity/keys_case.h"
#include "parity/select_cases.h"

namespace sluice::test {
namespace {

// A chunk is 4096 tokens; the cuts fall beside its ends.
TEST_P(EveryBackend, ManyChunksHaveTheSetsOfTheReference) {
  const SelectCase c{RowKind::kClusters, 4700, 64, 0.5, 3};
  for (const SelectRule rule :
       {SelectRule::kGreedy, SelectRule::kCascadeCover, SelectRule::kCascadeCausal}) {
    SCOPED_TRACE(static_cast<int>(rule));
    SelectInputs in = select_inputs(c, dtype(), rule, {0.5, 0.3});
    in.spec.want_cosines = false;
    in.spec.sinks = 4;
    in.spec.outlier_ratio = 8;
    const auto expected = select(*reference, DType::kF32, in);
    EXPECT_TRUE(same_sets(select(*backend, dtype(), in), expected));
    EXPECT_TRUE(same_sets(select(*backend, dtype(), in, {1, 4097}), expected));
  }
}

// Every kind of head by turns, of so many sets, but no window heads where all keys are seen.
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
  for (const int64_t pad : {0, 1})
    for (const double reps : {0.012, 0.004}) {
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

// The same where means are found beside attention: many heads of one set.
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
      {.n_tokens = 2100, .head_dim = 128, .n_heads = 20, .n_kv_heads = 10},
      {.n_tokens = 1601, .head_dim = 256, .n_heads = 10, .n_kv_heads = 10},
      {.n_tokens = 1777, .head_dim = 80, .n_heads = 15, .n_kv_heads = 5},
      {.n_tokens = 1500, .head_dim = 128, .n_heads = 60, .n_kv_heads = 5},
      {.n_tokens = 1500, .head_dim = 128, .n_heads = 10, .n_kv_heads = 10, .causal = false},
  };
  for (KeysCase& c : cases) {
    c.window = c.block = 128;
    for (const auto& [reps, n_sets] : {std::pair<double, size_t>{0.9, 1}, {0.9, 2}, {0.2, 1}}) {
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
      const std::vector<int64_t> cuts = {700, 701, 831, 832, 1400, 1410, 1411};
      EXPECT_LE(relative_distance(attend_keys(*backend, dtype(), c, in, cuts), expected), 0x1p-8);
    }
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
    EXPECT_SAME_BITS(attend_keys(*backend, dtype(), c, in), whole);
    EXPECT_LE(relative_distance(attend_keys(*backend, dtype(), c, in, cuts), whole),
              dtype() == DType::kBF16 ? 0x1p-8 : 0x1p-14);
  }
}

// In one pass; rows of `all` whose tokens stand for themselves.
std::vector<float> attend_among_reps(Backend& backend, const KeysCase& c, const KeysInputs& in) {
  const TokenSet& set = in.sets[0];
  const auto rows = [&](const std::vector<float>& all, int64_t n_heads) {
    std::vector<float> own;
    const int64_t width = n_heads * c.head_dim;
    for (int64_t t = 0; t < c.n_tokens; ++t)
      if (set.status[static_cast<size_t>(t)] != TokenStatus::kRedundant)
        own.insert(own.end(), all.begin() + t * width, all.begin() + (t + 1) * width);
    return DeviceTensor(backend, DType::kBF16, {set.n_clusters, n_heads, c.head_dim}, own, c.pad);
  };
  const DeviceTensor queries = rows(in.queries, c.n_heads), keys = rows(in.keys, c.n_kv_heads),
                     values = rows(in.values, c.n_kv_heads);
  const DeviceTensor out =
      unwritten(backend, DType::kBF16, {set.n_clusters, c.n_heads, c.head_dim}, c.pad);
  const auto attention = backend.make_reps_attention({.n_heads = c.n_heads,
                                                      .n_kv_heads = c.n_kv_heads,
                                                      .head_dim = c.head_dim,
                                                      .dtype = DType::kBF16,
                                                      .scale = c.scale(),
                                                      .causal = c.causal});
  attention->attend({.queries = queries.view(),
                     .keys = keys.view(),
                     .values = values.view(),
                     .set = &set,
                     .first_token = 0,
                     .out = out.view()});
  return out.values();
}

TEST_P(EveryBackend, LongRepsAgreeWithThePlainKernel) {
  if (dtype() != DType::kBF16) GTEST_SKIP() << "f32 has the plain kernel only";
  std::vector<KeysCase> cases = {
      {.n_tokens = 4000, .head_dim = 64, .n_heads = 15, .n_kv_heads = 15},
      {.n_tokens = 4000, .head_dim = 128, .n_heads = 20, .n_kv_heads = 10},
      {.n_tokens = 3000, .head_dim = 256, .n_heads = 10, .n_kv_heads = 10},
      {.n_tokens = 2000, .head_dim = 128, .n_heads = 60, .n_kv_heads = 5, .causal = false},
  };
  for (KeysCase& c : cases)
    for (const double reps : {0.9, 0.3, 0.05}) {
      c.set = {.reps = reps, .exempt = 0.01, .uncovered = 0.01};
      SCOPED_TRACE(testing::PrintToString(c));
      const KeysInputs in(c, dtype());
      KeysCase plain = c;
      plain.pad = 1;
      EXPECT_LE(relative_distance(attend_among_reps(*backend, c, in),
                                  attend_among_reps(*backend, plain, in)),
                0x1p-8);
    }
}

// Two layers that hand their sets on without the host, and attention that reads them where they
// are.
TEST_P(EveryBackend, SetsMayStayOnTheDevice) {
  const SelectCase c{RowKind::kClusters, 700, 64, 0.5, 5};
  SelectInputs first = select_inputs(c, dtype(), SelectRule::kGreedy, {0.5, 0.3});
  SelectInputs second = first;
  second.spec.rule = SelectRule::kCascadeCover;
  second.rows = random_values(c.n_tokens * c.d_model, 9, dtype(), 0.05f);
  for (size_t i = 0; i < second.rows.size(); ++i)
    second.rows[i] = rounded(dtype(), second.rows[i] + first.rows[i]);
  const KeysCase keys{.n_tokens = 700, .head_dim = 64, .window = 128, .block = 128};
  KeysInputs in(keys, dtype());

  struct Chosen {
    std::vector<TokenSet> sets;
    std::vector<float> attended, again;  // by a layer that goes by the sets, and by another one
  };
  // `at_home`: sets and flags go by way of the host.
  const auto run = [&](Backend& on, DType type, bool at_home) {
    const auto above = on.make_selector(first.spec), below = on.make_selector(second.spec);
    const auto layer = on.make_keys_attention(keys.spec(type));
    const auto other = on.make_keys_attention(keys.spec(type));
    Chosen out;
    const int64_t width = keys.n_heads * keys.head_dim;
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 600}, {600, 640}, {640, 700}}) {
      const int64_t n = end - begin;
      const auto part = [&](const std::vector<float>& all, int64_t columns) {
        return rows_of(all, columns, begin, end);
      };
      extend(*above, on, type, first, begin, end);
      const DeviceTensor rows(on, type, {n, c.d_model}, part(second.rows, c.d_model));
      const DeviceTensor residual(on, DType::kF32, {n, c.d_model}, part(second.rows, c.d_model));
      std::vector<std::vector<uint8_t>> flags;
      SelectArgs args{.rows = rows.view(), .residual = residual.view(), .inherited = {}};
      for (size_t i = 0; i < 2; ++i) flags.push_back(membership(above->sets()[i], begin, n));
      for (size_t i = 0; i < 2; ++i)
        args.inherited.push_back(at_home ? Inherited(flags[i]) : Inherited(*above, i));
      below->extend(args);
      EXPECT_EQ(below->n_decided(), end);
      const Shape shape{n, keys.n_heads, keys.head_dim};
      const DeviceTensor q(on, type, shape, part(in.queries, width));
      const DeviceTensor k(on, type, shape, part(in.keys, width));
      const DeviceTensor v(on, type, shape, part(in.values, width));
      for (const bool first_layer : {true, false}) {
        const DeviceTensor to = unwritten(on, type, shape);
        (first_layer ? layer : other)
            ->attend({.queries = q.view(),
                      .keys = k.view(),
                      .values = v.view(),
                      .sets = at_home ? SetsOf(below->sets()) : SetsOf(*below),
                      .out = to.view()});
        const auto values = to.values();
        auto& all = first_layer ? out.attended : out.again;
        all.insert(all.end(), values.begin(), values.end());
      }
    }
    out.sets = below->sets();
    return out;
  };
  const Chosen there = run(*backend, dtype(), false), here = run(*backend, dtype(), true);
  const Chosen expected = run(*reference, DType::kF32, false);
  EXPECT_TRUE(same_sets(there.sets, expected.sets));
  EXPECT_TRUE(same_sets(here.sets, expected.sets));
  EXPECT_SAME_BITS(there.attended, here.attended);
  EXPECT_SAME_BITS(there.again, there.attended);
  in.sets = expected.sets;
  EXPECT_CLOSE(there.attended, expected.attended,
               keys_bounds(*reference, dtype(), keys, in, expected.attended));
}

// A selector that begins anew has other sets, though as many tokens are decided.
TEST_P(EveryBackend, AnotherSequenceHasOtherSets) {
  const KeysCase keys{.n_tokens = 700, .head_dim = 64, .window = 128, .block = 128};
  const KeysInputs in(keys, dtype());
  const Shape shape{keys.n_tokens, keys.n_heads, keys.head_dim};
  const DeviceTensor q(*backend, dtype(), shape, in.queries);
  const DeviceTensor k(*backend, dtype(), shape, in.keys), v(*backend, dtype(), shape, in.values);
  const auto inputs = [&](uint32_t seed) {
    return select_inputs({RowKind::kClusters, keys.n_tokens, 64, 0.5, seed}, dtype(),
                         SelectRule::kGreedy, {0.5});
  };
  const SelectInputs one = inputs(5), two = inputs(6);
  const auto attend = [&](Selector& selector, KeysAttention& attention, const SelectInputs& rows) {
    selector.reset();
    attention.reset();
    extend(selector, *backend, dtype(), rows, 0, keys.n_tokens);
    const DeviceTensor to = unwritten(*backend, dtype(), shape);
    attention.attend({.queries = q.view(),
                      .keys = k.view(),
                      .values = v.view(),
                      .sets = selector,
                      .out = to.view()});
    return to.values();
  };
  const auto selector = backend->make_selector(one.spec);
  const auto attention = backend->make_keys_attention(keys.spec(dtype()));
  const auto of_one = attend(*selector, *attention, one);
  const auto of_two = attend(*selector, *attention, two);
  EXPECT_NE(of_two, of_one);
  const auto afresh = backend->make_selector(one.spec);
  EXPECT_SAME_BITS(attend(*afresh, *attention, two), of_two);
  EXPECT_SAME_BITS(attend(*selector, *attention, one), of_one);
}

}  // namespace
}  // namespace sluice::test
