// Selection in a basis on a device: rows near the basis, whose pairs coordinates decide, rows far
// from it, which are compared at full width, and both together.

#include <array>

#include "backend/cuda/runtime/device.h"
#include "parity/basis_cases.h"
#include "parity/cuda_select_cases.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

// Directions in the span of a basis and rows near them, at cosines on both sides of the threshold;
// outside of it every row has about `rest` of its norm, and of `n_far` in 16 rows all.
struct JointCase {
  int64_t n_tokens, d_model, rank;
  float rest;
  int64_t n_far;
  uint32_t seed;
};

SelectInputs joint_inputs(const JointCase& c, DType dtype, std::vector<double> taus) {
  SelectInputs in = select_inputs({.n_tokens = c.n_tokens, .d_model = c.d_model, .seed = c.seed},
                                  dtype, SelectRule::kCascadeCover, taus);
  in.spec.basis = random_basis(c.rank, c.d_model, c.seed);
  in.spec.sinks = 4;
  in.spec.want_cosines = c.seed % 2 == 0;
  const auto vectors = in.spec.basis->vectors();
  const int64_t n_kinds = c.n_tokens / 5;
  const auto centres = random_values(n_kinds * c.rank, c.seed + 1);
  const auto own = random_values(c.n_tokens * c.rank, c.seed + 2);
  std::mt19937 random(c.seed);
  // Numbers in [-1, 1) have squares of a third on average, in and outside of the span.
  const float size = c.rest * std::sqrt(static_cast<float>(c.rank) / static_cast<float>(c.d_model));
  for (int64_t t = 0; t < c.n_tokens; ++t) {
    const int64_t kind = static_cast<int64_t>(random() % static_cast<uint32_t>(n_kinds));
    const float noise = static_cast<float>(random() % 64) / 64;
    const bool far = static_cast<int64_t>(random() % 16) < c.n_far;
    float* row = in.rows.data() + t * c.d_model;
    for (int64_t i = 0; i < c.d_model; ++i) row[i] *= far ? 1 : size;
    for (int64_t k = 0; !far && k < c.rank; ++k) {
      const float along = centres[static_cast<size_t>(kind * c.rank + k)] +
                          noise * own[static_cast<size_t>(t * c.rank + k)];
      for (int64_t i = 0; i < c.d_model; ++i)
        row[i] += along * vectors[static_cast<size_t>(k * c.d_model + i)];
    }
    for (int64_t i = 0; i < c.d_model; ++i) row[i] = rounded(dtype, row[i]);
  }
  for (size_t i = 0; i < taus.size(); ++i)
    in.inherited[i] = likely_flags(in, taus[i], 20 + static_cast<uint32_t>(i));
  return in;
}

struct Counted {
  std::vector<TokenSet> sets;
  int64_t products, dropped;
};
Counted counted(Backend& backend, DType dtype, const SelectInputs& in,
                std::vector<int64_t> cuts = {}) {
  const auto selector = extended(backend, dtype, in, std::move(cuts));
  return {selector->sets(), selector->products(), selector->pairs_dropped()};
}

bool is_hopper() { return cuda::Context(0).compute_capability() == 90; }

// Everybody is compared with the same listed tokens: multiplied, or dropped.
void expect_joint(Backend& backend, DType dtype, SelectInputs in, double least_dropped,
                  const std::vector<int64_t>& cuts = {}) {
  SelectInputs without = in;
  without.spec.basis = nullptr;
  const auto expected = expected_sets(without);
  const Counted plain = counted(backend, dtype, without, cuts);
  ASSERT_TRUE(same_sets(plain.sets, expected));
  EXPECT_EQ(plain.dropped, 0);
  for (const BasisUse use : {BasisUse::kAlways, BasisUse::kWherePays}) {
    in.spec.basis_use = use;
    const Counted joint = counted(backend, dtype, in, cuts);
    ASSERT_TRUE(same_sets(joint.sets, expected)) << "use " << static_cast<int>(use);
    EXPECT_EQ(joint.products + joint.dropped, plain.products) << "use " << static_cast<int>(use);
    EXPECT_GE(joint.dropped, 0);
    EXPECT_GE(joint.products, 0);
    if (use == BasisUse::kAlways && is_hopper()) {
      EXPECT_GE(static_cast<double>(joint.dropped),
                least_dropped * static_cast<double>(plain.products));
    }
  }
}

TEST_P(EveryBackend, RowsNearABasisAreDecidedByCoordinates) {
  uint32_t seed = 1;
  const std::array<int64_t, 4> ranks = {8, 64, 100, 200};
  for (const auto& [rank, rest] : thinned(combinations(ranks, std::array{0.02f, 0.2f}), 7)) {
    const JointCase c{2600, 320, rank, rest, 0, ++seed};
    SCOPED_TRACE("rank " + std::to_string(rank) + ", rest " + std::to_string(rest));
    const SelectInputs in = joint_inputs(c, dtype(), {0.5});
    expect_joint(*backend, dtype(), in, rank >= 64 ? 0.5 : 0);
    expect_joint(*backend, dtype(), in, 0, {700, 701, 1900});
  }
}

// More directions than the device looks at.
TEST_P(EveryBackend, ABasisOfHighRankIsCutShort) {
  expect_joint(*backend, dtype(), joint_inputs({1100, 512, 400, 0.02f, 0, 4}, dtype(), {0.5}), 0);
}

TEST_P(EveryBackend, RowsFarFromABasisAreComparedAtFullWidth) {
  for (const int64_t n_far : thinned({1, 4, 15}, 2)) {
    SCOPED_TRACE(std::to_string(n_far) + " of 16 far");
    const SelectInputs in =
        joint_inputs({2300, 256, 32, 0.1f, n_far, static_cast<uint32_t>(n_far)}, dtype(), {0.5});
    expect_joint(*backend, dtype(), in, 0);
    expect_joint(*backend, dtype(), in, 0, {1000, 1300});
  }
  // All of them.
  SelectInputs in = joint_inputs({2300, 256, 32, 0.1f, 0, 5}, dtype(), {0.5});
  in.spec.basis = random_basis(16, 256, 99);
  expect_joint(*backend, dtype(), in, 0, {1500});
}

struct Pairs {
  int64_t products, dropped;
};
// Of a first pass, and of the one that follows.
std::pair<Pairs, Pairs> two_passes(Backend& backend, DType dtype, const SelectInputs& in,
                                   int64_t cut) {
  const auto selector = backend.make_selector(in.spec);
  extend(*selector, backend, dtype, in, 0, cut);
  const Pairs first{selector->products(), selector->pairs_dropped()};
  extend(*selector, backend, dtype, in, cut, in.n_tokens);
  return {first,
          {selector->products() - first.products, selector->pairs_dropped() - first.dropped}};
}

TEST_P(EveryBackend, ABasisIsUsedWhereItPaysAndGivenUpWhereItDoesNot) {
  if (!is_hopper()) GTEST_SKIP() << "other GPUs do not look at bases";
  SelectInputs in = joint_inputs({3000, 256, 32, 0.1f, 0, 9}, dtype(), {0.5});
  const auto [near, near_next] = two_passes(*backend, dtype(), in, 2000);
  EXPECT_GT(near.dropped, near.products);
  EXPECT_GT(near_next.dropped, near_next.products);
  in.spec.basis = random_basis(16, 256, 99);
  const auto [useless, useless_next] = two_passes(*backend, dtype(), in, 2000);
  EXPECT_LT(useless.dropped, useless.products / 10);
  EXPECT_EQ(useless_next.dropped, 0);
  in.spec.basis = nullptr;
  const auto [plain, plain_next] = two_passes(*backend, dtype(), in, 2000);
  EXPECT_EQ(useless.products + useless.dropped, plain.products);
  EXPECT_EQ(useless_next.products, plain_next.products);
}

// The next sequence begins anew, whatever its rows are.
TEST_P(EveryBackend, ResetForgetsCoordinates) {
  const SelectInputs in = joint_inputs({2100, 192, 64, 0.1f, 1, 10}, dtype(), {0.5});
  SelectInputs other = joint_inputs({1900, 192, 64, 0.1f, 0, 11}, dtype(), {0.5});
  other.spec = in.spec;
  SelectInputs without = in;
  without.spec.basis = nullptr;
  const auto expected = expected_sets(without);
  const auto selector = backend->make_selector(in.spec);
  int64_t dropped = -1;
  for (const DType rows : {dtype(), DType::kF32, dtype(), dtype()}) {
    extend(*selector, *backend, rows, other, 0, other.n_tokens);
    selector->reset();
    for (const auto& [first, last] : {std::pair<int64_t, int64_t>{0, 1500}, {1500, in.n_tokens}})
      extend(*selector, *backend, rows, in, first, last);
    ASSERT_TRUE(same_sets(selector->sets(), expected));
    if (rows == dtype()) {
      if (dropped < 0) dropped = selector->pairs_dropped();
      EXPECT_EQ(selector->pairs_dropped(), dropped);
    }
    selector->reset();
  }
}

TEST_P(EveryBackend, SeveralSetsShareCoordinates) {
  const SelectInputs in = joint_inputs({1500, 192, 64, 0.1f, 1, 7}, dtype(), {0.3, 0.5, 0.7});
  expect_joint(*backend, dtype(), in, 0);
  expect_joint(*backend, dtype(), in, 0, {512, 1024});
}

TEST_P(EveryBackend, TheFutureDoesNotTouchPastSetsInABasis) {
  constexpr int64_t kPast = 1100;
  for (const BasisUse use : {BasisUse::kAlways, BasisUse::kWherePays}) {
    SelectInputs in = joint_inputs({2300, 192, 32, 0.1f, 1, 8}, dtype(), {0.5});
    in.spec.basis_use = use;
    const auto before = select(*backend, dtype(), in);
    // Now far from the basis, so that it does not pay.
    const auto other = random_values((in.n_tokens - kPast) * 192, 77, dtype());
    std::copy(other.begin(), other.end(), in.rows.begin() + kPast * 192);
    for (size_t t = kPast; t < in.inherited[0].size(); ++t) in.inherited[0][t] ^= 1;
    for (const auto& cuts : {std::vector<int64_t>{}, {kPast + 100}}) {
      const auto after = select(*backend, dtype(), in, cuts);
      EXPECT_TRUE(same_start(after[0], before[0], kPast));
    }
  }
}

}  // namespace
}  // namespace sluice::impl::test
