// Refined attention that computes the exact output in addition to its own, and deltas that are made
// smaller while it runs. docs/algorithm.md, section 7, "Audit".

#include "parity/refine_case.h"

namespace sluice::impl::test {
namespace {

constexpr RefineHead kSome{HeadKind::kClusters, 0.05};
constexpr RefineHead kMeans{HeadKind::kClusters, std::numeric_limits<double>::infinity()};
constexpr RefineHead kWindow{HeadKind::kWindow, 0};
constexpr RefineHead kDense{HeadKind::kDense, 0};

// The last token stands before any border, on one that closes a segment, and behind it.
std::vector<RefineCase> exact_cases() {
  std::vector<RefineCase> cases;
  for (const int64_t n : {1, 40, 192, 193, 194, 321})
    cases.push_back({.n_tokens = n,
                     .head_dim = 64,
                     .n_heads = 8,
                     .n_kv_heads = 4,
                     .window = 64,
                     .segment = 64,
                     .tile = 1,
                     .heads = {kSome, kWindow, kDense, kMeans}});
  cases.push_back({.n_tokens = 300, .head_dim = 80, .tile = 1, .delta = 0.05, .pad = 3});
  for (const int64_t n : {100, 230, 257})  // with early parts of the open segment
    cases.push_back({.n_tokens = n,
                     .head_dim = 64,
                     .n_heads = 8,
                     .n_kv_heads = 4,
                     .window = 0,
                     .segment = 128,
                     .early = 32,
                     .tile = 1,
                     .heads = {kSome, kWindow, kDense, kMeans}});
  return cases;
}

std::unique_ptr<RefineAttention> keeping_all(Backend& backend, DType dtype, const RefineCase& c) {
  RefineSpec spec = c.spec(dtype);
  spec.keeps_all = true;
  return backend.make_refine_attention(spec);
}

RefineCase all_dense(RefineCase c) {
  c.heads.assign(static_cast<size_t>(c.n_kv_heads), kDense);
  return c;
}

TEST_P(EveryImplementation, AnExactAnswerIsDenseAndLeavesTheCacheAsItWas) {
  for (const RefineCase& c : exact_cases()) {
    SCOPED_TRACE(testing::PrintToString(c));
    const RefineInputs in(c, dtype());
    const int64_t n = c.n_tokens, last = n - 1;
    const auto attention = keeping_all(*backend, dtype(), c);
    const auto plain = keeping_all(*backend, dtype(), c);
    if (last > 0)
      for (RefineAttention* each : {attention.get(), plain.get()})
        attend_pass(*each, *backend, dtype(), c, in, 0, last);
    const auto opened = attention->opened();
    const auto bytes = attention->bytes().exact;
    const auto exact =
        attend_pass(*attention, *backend, dtype(), c, in, last, n, &RefineAttention::attend_exact);
    EXPECT_EQ(attention->opened(), opened);
    EXPECT_EQ(attention->bytes().exact, bytes);
    const RefineCase dense = all_dense(c);
    const auto expected = rows_of(expected_refine(*reference, dtype(), dense, in).out,
                                  c.n_heads * c.head_dim, last, n);
    EXPECT_CLOSE(exact, expected, refine_bounds(dtype(), dense, in, expected));
    EXPECT_SAME_BITS(attend_pass(*attention, *backend, dtype(), c, in, last, n),
                     attend_pass(*plain, *backend, dtype(), c, in, last, n));
    EXPECT_EQ(attention->opened(), plain->opened());
  }
}

TEST_P(EveryImplementation, AFactorOfDeltaIsAnotherDelta) {
  constexpr double kFactor = 0.25;
  for (const double factor : {kFactor, 0.0}) {
    const RefineCase c{.n_tokens = 300,
                       .head_dim = 64,
                       .n_heads = 4,
                       .n_kv_heads = 4,
                       .segment = 64,
                       .heads = {kSome, kWindow, kDense, kMeans}};
    const RefineInputs in(c, dtype());
    RefineCase other = c;
    for (RefineHead& head : other.heads) head = head.tightened(factor);
    EXPECT_EQ(other.heads[0].delta, factor * kSome.delta);
    EXPECT_EQ(other.heads[1].kind, factor == 0 ? HeadKind::kDense : HeadKind::kWindow);
    const auto attention = keeping_all(*backend, dtype(), c);
    const auto expected = keeping_all(*backend, dtype(), other);
    attention->set_delta_factor(factor);
    for (const auto& [first, last] : {std::pair<int64_t, int64_t>{0, 299}, {299, 300}})
      EXPECT_CLOSE(attend_pass(*attention, *backend, dtype(), c, in, first, last),
                   attend_pass(*expected, *backend, dtype(), other, in, first, last),
                   dtype() == DType::kF32 ? 1e-6 : 0x1p-7);
  }
}

}  // namespace
}  // namespace sluice::impl::test
