// Modes `copy` and `paper`: attention among the tokens that stand for themselves, against the
// reference and dense attention. docs/algorithm.md, section 3.

#include "parity/keys_case.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

// The sizes of a KeysCase, whose windows and heads are not read here.
struct RepsCase : KeysCase {
  bool multiplicity = true;
  RepsSpec reps_spec(DType dtype) const {
    return {.n_heads = n_heads,
            .n_kv_heads = n_kv_heads,
            .head_dim = head_dim,
            .dtype = dtype,
            .scale = scale(),
            .causal = causal,
            .multiplicity = multiplicity};
  }
};

const RepsCase kCases[] = {
    {{.n_tokens = 1, .head_dim = 64}},
    {{.n_tokens = 37, .head_dim = 16}},
    {{.n_tokens = 37, .head_dim = 80, .n_heads = 4, .pad = 3}, false},
    {{.n_tokens = 37, .head_dim = 256, .causal = false}},
    {{.n_tokens = 129, .head_dim = 64, .n_heads = 6, .size = 10}},
    {{.n_tokens = 129, .head_dim = 128, .n_heads = 3, .n_kv_heads = 1, .causal = false, .pad = 1}},
    {{.n_tokens = 129, .head_dim = 16, .causal = false}, false},
    {{.n_tokens = 300, .head_dim = 80, .set = {.reps = 0.9, .sinks = 4}}},
    {{.n_tokens = 300, .head_dim = 256, .n_heads = 6, .set = {.reps = 0.7}}},
    {{.n_tokens = 1000, .head_dim = 64, .set = {.reps = 0.4}}},
    {{.n_tokens = 1000, .head_dim = 16, .set = {.reps = 0.01, .exempt = 0, .uncovered = 0}}},
    {{.n_tokens = 1000, .head_dim = 64, .n_heads = 1, .n_kv_heads = 1, .causal = false}},
    // Counts are noted every 1024 tokens on the CPU.
    {{.n_tokens = 2200, .head_dim = 16, .n_heads = 1, .n_kv_heads = 1, .set = {.reps = 0.1}}},
};

// The rows of tokens [first, last) that stand for themselves, of a tensor (n_tokens, width).
std::vector<float> own_rows(const TokenSet& set, const std::vector<float>& all, int64_t width,
                            int64_t first, int64_t last) {
  std::vector<float> rows;
  for (int64_t t = first; t < last; ++t)
    if (set.status[static_cast<size_t>(t)] != TokenStatus::kRedundant)
      rows.insert(rows.end(), all.begin() + t * width, all.begin() + (t + 1) * width);
  return rows;
}

std::vector<float> reps_pass(RepsAttention& attention, Backend& backend, DType dtype,
                             const RepsCase& c, const KeysInputs& in, int64_t first, int64_t last) {
  const TokenSet set = last < c.n_tokens ? start_of(in.sets[0], last) : in.sets[0];
  const int64_t wide = c.n_heads * c.head_dim, narrow = c.n_kv_heads * c.head_dim;
  const auto q = own_rows(set, in.queries, wide, first, last);
  const auto n = static_cast<int64_t>(q.size()) / wide;
  const DeviceTensor queries(backend, dtype, {n, c.n_heads, c.head_dim}, q, c.pad);
  const DeviceTensor keys(backend, dtype, {n, c.n_kv_heads, c.head_dim},
                          own_rows(set, in.keys, narrow, first, last), c.pad);
  const DeviceTensor values(backend, dtype, {n, c.n_kv_heads, c.head_dim},
                            own_rows(set, in.values, narrow, first, last), c.pad);
  const DeviceTensor out = unwritten(backend, dtype, {n, c.n_heads, c.head_dim}, c.pad);
  attention.attend({.queries = queries.view(),
                    .keys = keys.view(),
                    .values = values.view(),
                    .set = &set,
                    .first_token = first,
                    .out = out.view()});
  return out.values();
}

// (n_clusters, n_heads, head_dim)
std::vector<float> attend_reps(Backend& backend, DType dtype, const RepsCase& c,
                               const KeysInputs& in, std::vector<int64_t> cuts = {}) {
  const auto attention = backend.make_reps_attention(c.reps_spec(dtype));
  std::vector<float> out;
  cuts.push_back(c.n_tokens);
  int64_t first = 0;
  for (const int64_t last : cuts) {
    const auto part = reps_pass(*attention, backend, dtype, c, in, first, last);
    out.insert(out.end(), part.begin(), part.end());
    first = last;
  }
  return out;
}

std::vector<double> bounds(Backend& reference, DType dtype, const RepsCase& c, const KeysInputs& in,
                           const std::vector<float>& expected) {
  KeysInputs magnitudes = in;
  magnitudes.values = absolute(in.values);
  const auto size = attend_reps(reference, DType::kF32, c, magnitudes);
  const double error =
      attention_error(dtype, {.head_dim = c.head_dim,
                              .n_keys = c.n_tokens,
                              .score = largest_row_norm(in.queries, c.head_dim) *
                                       largest_row_norm(in.keys, c.head_dim) * double{c.scale()},
                              .means = false});
  std::vector<double> all;
  for (size_t i = 0; i < expected.size(); ++i)
    all.push_back(stored_error(dtype, expected[i], error * double{size[i]}));
  return all;
}

TEST_P(EveryBackend, RepsAttentionAgreesWithTheReference) {
  for (const RepsCase& c : kCases) {
    SCOPED_TRACE(testing::PrintToString(c));
    const KeysInputs in(c, dtype());
    const auto expected = attend_reps(*reference, DType::kF32, c, in);
    EXPECT_CLOSE(attend_reps(*backend, dtype(), c, in), expected,
                 bounds(*reference, dtype(), c, in, expected));
  }
}

TEST_P(EveryBackend, RepsAttentionDoesNotDependOnThreads) {
  for (const RepsCase& c : thinned(kCases, 3)) {
    SCOPED_TRACE(testing::PrintToString(c));
    const KeysInputs in(c, dtype());
    set_threads(1);
    const auto one = attend_reps(*backend, dtype(), c, in);
    set_threads(3);
    EXPECT_SAME_BITS(attend_reps(*backend, dtype(), c, in), one);
  }
}

// Two clusters of one number per token: what the third token, a representative, must answer.
TEST_P(EveryImplementation, MultiplicityWeighsTheMembersUpToTheQuery) {
  KeysInputs in({.n_tokens = 4, .head_dim = 1, .n_heads = 1, .n_kv_heads = 1}, dtype());
  in.queries = in.keys = {0, 0, 0, 0};
  in.values = {8, 64, 2, 64};
  in.sets[0].status = {TokenStatus::kRepresentative, TokenStatus::kRedundant,
                       TokenStatus::kRepresentative, TokenStatus::kRedundant};
  in.sets[0].owner = {0, 0, 2, 0};
  in.sets[0].cluster = {0, 0, 1, 0};
  in.sets[0].n_clusters = 2;
  RepsCase c{{.n_tokens = 4, .head_dim = 1, .n_heads = 1, .n_kv_heads = 1}};
  const auto expect = [&](const std::vector<float>& expected) {
    EXPECT_CLOSE(attend_reps(*backend, dtype(), c, in), expected,
                 bounds(*reference, dtype(), c, in, expected));
  };
  expect({8, 6});  // two members up to the third token
  c.causal = false;
  expect({6.5f, 6.5f});  // three members in all
  c.multiplicity = false;
  expect({5, 5});
  c.causal = true;
  expect({8, 5});
}

// The second pass begins among them. Devices count up to 255 in a byte.
TEST_P(EveryBackend, AClusterMayGetManyMembersBetweenTwoQueries) {
  const SetShape all{.reps = 1, .exempt = 0, .uncovered = 0};
  for (const int64_t n : {253, 254, 255, 600}) {
    SCOPED_TRACE(n);
    const RepsCase c{{.n_tokens = n + 160, .head_dim = 64}};
    KeysInputs in(c, dtype());
    in.sets[0] = random_set(5, all, 1);
    crowd(in.sets[0], n);
    grow(in.sets[0], c.n_tokens, all, 2);
    const auto expected = attend_reps(*reference, DType::kF32, c, in);
    const auto error = bounds(*reference, dtype(), c, in, expected);
    EXPECT_CLOSE(attend_reps(*backend, dtype(), c, in), expected, error);
    EXPECT_CLOSE(attend_reps(*backend, dtype(), c, in, {200, 220}), expected, error);
  }
}

TEST_P(EveryImplementation, AllTokensAsRepresentativesEqualDenseAttention) {
  for (const RepsCase& c : sampled(kCases, 3)) {
    SCOPED_TRACE(testing::PrintToString(c));
    KeysInputs in(c, dtype());
    in.sets[0] = all_tokens(c.n_tokens);
    const auto expected = attend_dense(*reference, c, in);
    EXPECT_CLOSE(attend_reps(*backend, dtype(), c, in), expected,
                 bounds(*reference, dtype(), c, in, expected));
  }
}

TEST_P(EveryImplementation, WithoutMultiplicityItIsDenseAttentionOfTheRepresentatives) {
  for (RepsCase c : kCases) {
    SCOPED_TRACE(testing::PrintToString(c));
    c.multiplicity = false;
    const KeysInputs in(c, dtype());
    KeysCase few = c;
    few.n_tokens = in.sets[0].n_clusters;
    KeysInputs rows = in;
    const int64_t narrow = c.n_kv_heads * c.head_dim;
    rows.queries = own_rows(in.sets[0], in.queries, c.n_heads * c.head_dim, 0, c.n_tokens);
    rows.keys = own_rows(in.sets[0], in.keys, narrow, 0, c.n_tokens);
    rows.values = own_rows(in.sets[0], in.values, narrow, 0, c.n_tokens);
    const auto expected = attend_dense(*reference, few, rows);
    EXPECT_CLOSE(attend_reps(*backend, dtype(), c, in), expected,
                 bounds(*reference, dtype(), c, in, expected));
  }
}

TEST_P(EveryImplementation, RepresentativesOfDuplicatesAnswerAsInDenseAttention) {
  for (RepsCase c : sampled(kCases, 3)) {
    SCOPED_TRACE(testing::PrintToString(c));
    c.multiplicity = true;
    KeysInputs in(c, dtype());
    const int64_t width = c.n_kv_heads * c.head_dim;
    for (int64_t t = 0; t < c.n_tokens; ++t) {
      const int64_t from = in.sets[0].owner[static_cast<size_t>(t)] * width;
      if (from == t * width) continue;
      std::copy_n(in.keys.begin() + from, width, in.keys.begin() + t * width);
      std::copy_n(in.values.begin() + from, width, in.values.begin() + t * width);
    }
    const auto expected = own_rows(in.sets[0], attend_dense(*reference, c, in),
                                   c.n_heads * c.head_dim, 0, c.n_tokens);
    EXPECT_CLOSE(attend_reps(*backend, dtype(), c, in), expected,
                 bounds(*reference, dtype(), c, in, expected));
  }
}

// Passes with no new representative among them.
TEST_P(EveryImplementation, AnyCutGivesTheSameRepsAttention) {
  for (const RepsCase& c : thinned(kCases, 4)) {
    if (!c.causal) continue;
    SCOPED_TRACE(testing::PrintToString(c));
    std::vector<int64_t> cuts;
    for (const int64_t cut : {1, 2, 3, 16, 64, 65, 128, 300, 512, 899})
      if (cut < c.n_tokens) cuts.push_back(cut);
    const int64_t decode = std::max(c.n_tokens - 40, cuts.empty() ? 0 : cuts.back());
    for (int64_t t = decode + 1; t < c.n_tokens; ++t) cuts.push_back(t);
    const KeysInputs in(c, dtype());
    const auto expected = attend_reps(*reference, DType::kF32, c, in);
    EXPECT_CLOSE(attend_reps(*backend, dtype(), c, in, thinned(cuts, 10)), expected,
                 bounds(*reference, dtype(), c, in, expected));
  }
}

// Row compaction changes heights with the set, so other backends may sum in another order.
TEST_P(EveryImplementation, TheFutureDoesNotTouchPastRepsAttention) {
  for (const RepsCase& c : kCases) {
    const int64_t last = c.n_tokens / 2;
    if (!c.causal || last + 1 >= c.n_tokens) continue;
    SCOPED_TRACE(testing::PrintToString(c));
    const KeysInputs in(c, dtype()), other(c, dtype(), 77);
    KeysInputs changed = in;
    const auto replace = [&](std::vector<float>& to, const std::vector<float>& from, int64_t width,
                             float factor) {
      for (auto i = static_cast<size_t>((last + 1) * width); i < to.size(); ++i)
        to[i] = factor * from[i];
    };
    replace(changed.queries, other.queries, c.n_heads * c.head_dim, 1);
    replace(changed.keys, other.keys, c.n_kv_heads * c.head_dim, 64);
    replace(changed.values, other.values, c.n_kv_heads * c.head_dim, 1024);
    changed.sets[0] = start_of(in.sets[0], last + 1);
    const int64_t n_past = changed.sets[0].n_clusters;
    grow(changed.sets[0], c.n_tokens, {.reps = 0.5}, 99);
    const auto past = [&](const std::vector<float>& all) {
      return rows_of(all, c.n_heads * c.head_dim, 0, n_past);
    };
    const auto after = past(attend_reps(*backend, dtype(), c, changed));
    const auto expected = past(attend_reps(*reference, DType::kF32, c, in));
    EXPECT_CLOSE(after, expected, bounds(*reference, dtype(), c, in, expected));
    if (backend->name() == "reference") {
      EXPECT_SAME_BITS(after, past(attend_reps(*backend, dtype(), c, in)));
    }
  }
}

TEST_P(EveryImplementation, ResetForgetsTheRepresentatives) {
  const RepsCase c{{.n_tokens = 129, .head_dim = 64}};
  const KeysInputs in(c, dtype()), other(c, dtype(), 5);
  const auto attention = backend->make_reps_attention(c.reps_spec(dtype()));
  reps_pass(*attention, *backend, dtype(), c, other, 0, 100);
  attention->reset();
  EXPECT_SAME_BITS(reps_pass(*attention, *backend, dtype(), c, in, 0, c.n_tokens),
                   attend_reps(*backend, dtype(), c, in));
}

}  // namespace
}  // namespace sluice::impl::test
