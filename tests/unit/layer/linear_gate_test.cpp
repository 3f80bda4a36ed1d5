// A gate token by token: which path each takes, whatever the cut into passes, and that a sequence's
// own directions come from earlier tokens alone. docs/algorithm.md, section 4.

#include "layer/linear_gate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "parity/backends.h"
#include "parity/compare.h"

namespace sluice::impl::test {
namespace {

constexpr int64_t kIn = 8, kOut = 5, kRank = 2;
constexpr double kEpsilon = 0.1;

class Gate : public testing::TestWithParam<const char*> {
 protected:
  Gate() {
    std::vector<float> matrix;
    for (int64_t i = 0; i < kIn * kOut; ++i)
      matrix.push_back(static_cast<float>((i * 37 + 11) % 17) / 8 - 1);
    MatrixSource source = matrix_source(kOut, kIn, matrix);
    source.bias = {0.5f, -1, 2, 0, 0.25f};
    group = LinearGroup(backend->pack_linear(source));
    // The first axes.
    std::vector<float> vectors(kRank * kIn, 0.0f);
    for (size_t i = 0; i < kRank; ++i) vectors[i * kIn + i] = 1;
    group.add_subspace(*backend, source, backend->make_basis(vectors, kRank, kIn));
    group.add_host_subspace(*backend, kRank, vectors, source.bias);
    group.add_columns(*backend, source);
  }

  // Letters, a token each: 'f' within the basis, 'n' near it (a residual of about 0.05), 'a' … 'e'
  // mostly along the axis kRank, kRank + 1 …
  static std::vector<float> rows_of(const std::string& text) {
    std::vector<float> rows;
    for (size_t t = 0; t < text.size(); ++t) {
      std::vector<float> row(kIn, 0.0f);
      row[0] = 1 + static_cast<float>(t % 7) / 8;
      row[1] = static_cast<float>(t % 5) / 4 - 0.5f;
      if (text[t] == 'n')
        row[kIn - 1] = 0.05f;
      else if (text[t] != 'f')
        row[static_cast<size_t>(kRank + text[t] - 'a')] = 2;
      rows.insert(rows.end(), row.begin(), row.end());
    }
    return rows;
  }

  struct Outcome {
    std::vector<float> out;  // (n_tokens, kOut)
    LinearCounts counts;
  };
  // In pieces of `size` tokens; accumulated on ones.
  Outcome run(const GroupPlan& plan, const std::string& text, size_t size) {
    LinearGate gate(*backend, group, plan, 1, std::make_shared<LinearScratch>());
    return run(gate, text, size);
  }
  Outcome run(LinearGate& gate, const std::string& text, size_t size) {
    std::vector<float> rows = rows_of(text), out(text.size() * kOut, 1.0f);
    for (size_t begin = 0; begin < text.size(); begin += size) {
      const auto n = static_cast<int64_t>(std::min(size, text.size() - begin));
      gate.run({.weights = nullptr,
                .x = ConstTensor(rows.data() + begin * kIn, DType::kF32, {n, kIn}),
                .accumulate = true,
                .out = Tensor(out.data() + begin * kOut, DType::kF32, {n, kOut})},
               -1);
    }
    return {out, gate.counts()};
  }
  std::vector<float> dense(const std::string& text) {
    std::vector<float> rows = rows_of(text), out(text.size() * kOut, 1.0f);
    const auto n = static_cast<int64_t>(text.size());
    backend->linear({.weights = &group.dense(),
                     .x = ConstTensor(rows.data(), DType::kF32, {n, kIn}),
                     .accumulate = true,
                     .out = Tensor(out.data(), DType::kF32, {n, kOut})});
    return out;
  }
  static GroupPlan gsi(int64_t adaptive = 0) {
    return {.kind = LinearKind::kGsi, .rank = kRank, .epsilon = kEpsilon, .adaptive = adaptive};
  }

  std::unique_ptr<Backend> backend = std::string_view(GetParam()) == "cpu"
                                         ? make_cpu_backend(DType::kF32)
                                         : make_reference_backend(DType::kF32);
  LinearGroup group;
  // Rows within the basis lose nothing but round-off of a few sums of numbers below 8.
  static constexpr double kRoundOff = 1e-5;
};

std::string times(int64_t n, char letter) { return std::string(static_cast<size_t>(n), letter); }

TEST_P(Gate, FastAndSlowTokensGiveTheDenseProductInAnyOrder) {
  for (const std::string& text : {std::string("ffff"), std::string("abcd"), std::string("fafbbfcf"),
                                  std::string("a"), std::string("f")}) {
    const Outcome found = run(gsi(), text, text.size());
    EXPECT_CLOSE(found.out, dense(text), kRoundOff);
    EXPECT_EQ(found.counts.n_fast, std::count(text.begin(), text.end(), 'f'));
    EXPECT_EQ(found.counts.residuals.count(), static_cast<int64_t>(text.size()));
  }
}

// A token whose residual is epsilon is fast, as docs/algorithm.md has it: within the basis, at 0.
TEST_P(Gate, AResidualOfEpsilonIsFast) {
  const GroupPlan exact{.kind = LinearKind::kGsi, .rank = kRank, .epsilon = 0};
  EXPECT_EQ(run(exact, "fa", 2).counts.n_fast, 1);
}

// What is outside of the basis is left out, and nothing else: such a row gives what 'f' gives.
TEST_P(Gate, ANearRowLosesWhatIsOutside) {
  const Outcome near = run(gsi(), "nnn", 3), inside = run(gsi(), "fff", 3);
  EXPECT_EQ(near.counts.n_fast, 3);
  EXPECT_CLOSE(near.out, inside.out, kRoundOff);
  const auto exact = dense("nnn");
  EXPECT_GT(std::abs(near.out[0] - exact[0]), 100 * kRoundOff);
}

TEST_P(Gate, CountsWhatTheDefinitionReads) {
  const LinearCounts counts = run(gsi(), "ffa", 3).counts;
  EXPECT_EQ(counts.elements, 2 * kRank * (kIn + kOut) + kIn * kOut + kIn * kRank);
  EXPECT_EQ(counts.dense_elements, 3 * kIn * kOut);
}

TEST_P(Gate, AfterManySlowTokensItIsPassedByAndTriedAgain) {
  constexpr int64_t kSlow = BypassLimits().slow_tokens, kRetry = BypassLimits().retry_tokens;
  // 63 slow ones do not close it, 64 do; then 1,023 pass by, even fast ones, until a fast one is
  // tried and opens it.
  const std::string text = times(kSlow - 1, 'a') + "f" + times(kSlow, 'b') +
                           times(kRetry - 1, 'f') + "ff" + times(3, 'a');
  const LinearCounts counts = run(gsi(), text, text.size()).counts;
  EXPECT_EQ(counts.n_fast, 1 + 2);
  EXPECT_EQ(counts.n_bypassed, kRetry - 1);
  EXPECT_EQ(counts.residuals.count(), static_cast<int64_t>(text.size()) - (kRetry - 1));
  // A slow try closes it for as long again.
  const std::string slow = times(kSlow + 2 * kRetry, 'a') + "f";
  const LinearCounts closed = run(gsi(), slow, slow.size()).counts;
  EXPECT_EQ(closed.n_fast, 0);
  EXPECT_EQ(closed.n_bypassed, 2 * (kRetry - 1) + 1);
}

TEST_P(Gate, CutsIntoPassesChangeNothing) {
  std::string text = times(70, 'a') + times(20, 'f') + times(900, 'b') + times(200, 'f');
  for (int i = 0; i < 400; ++i) text += "fabcde"[i * 7 % 6];
  for (const int64_t adaptive : {0, 2}) {
    const Outcome whole = run(gsi(adaptive), text, text.size());
    EXPECT_GT(whole.counts.n_fast, 0);
    EXPECT_GT(whole.counts.n_bypassed, 0);
    if (adaptive > 0) {
      EXPECT_GT(whole.counts.n_additions, adaptive);  // some had to leave
    }
    for (const size_t size : {1, 7, 64, 127, 129, 1000}) {
      const Outcome pieces = run(gsi(adaptive), text, size);
      EXPECT_CLOSE(pieces.out, whole.out, kRoundOff) << size;
      EXPECT_EQ(pieces.counts.n_fast, whole.counts.n_fast) << size;
      EXPECT_EQ(pieces.counts.n_bypassed, whole.counts.n_bypassed) << size;
      EXPECT_EQ(pieces.counts.n_additions, whole.counts.n_additions) << size;
      EXPECT_EQ(pieces.counts.elements, whole.counts.elements) << size;
    }
  }
}

TEST_P(Gate, SlowTokensTeachAnAdaptiveBasisAtTheNextBoundary) {
  constexpr int64_t kBlock = AdaptiveBasis::kBlock;
  // Slow before the boundary, fast behind it, exact on either side.
  const std::string text = times(kBlock - 2, 'f') + "ab" + "abab" + "c";
  const Outcome found = run(gsi(3), text, text.size());
  EXPECT_CLOSE(found.out, dense(text), kRoundOff);
  EXPECT_EQ(found.counts.n_additions, 2);
  EXPECT_EQ(found.counts.n_fast, kBlock - 2 + 4);
  EXPECT_EQ(run(gsi(0), text, text.size()).counts.n_fast, kBlock - 2);
  // A gate that had closed is tried again with the new directions.
  const std::string closed = times(kBlock, 'a') + times(5, 'a');
  EXPECT_EQ(run(gsi(3), closed, closed.size()).counts.n_fast, 5);
}

TEST_P(Gate, TheDirectionOfLeastRecentEnergyLeaves) {
  constexpr int64_t kBlock = AdaptiveBasis::kBlock;
  // a and b join; b is used, a is not; c takes a's place.
  const std::string text = times(kBlock - 2, 'f') + "ab" + times(kBlock - 1, 'b') + "c" + "bca";
  const Outcome found = run(gsi(2), text, text.size());
  EXPECT_CLOSE(found.out, dense(text), kRoundOff);
  EXPECT_EQ(found.counts.n_additions, 3);
  EXPECT_EQ(found.counts.n_fast, kBlock - 2 + kBlock - 1 + 2);  // b and c, not a
}

// Rows without a subspace: every block has an axis of its own, and there are two places. Once they
// are taken the gate closes as any other does, and stays closed.
TEST_P(Gate, SwappingDirectionsDoesNotKeepAHopelessGateOpen) {
  constexpr int64_t kBlock = AdaptiveBasis::kBlock, kSlow = BypassLimits().slow_tokens;
  std::string text;
  for (int i = 0; i < 10; ++i) text += times(kBlock, "abcde"[i % 5]);
  ASSERT_LT(8 * kBlock - kSlow, BypassLimits().retry_tokens);
  const LinearCounts counts = run(gsi(2), text, text.size()).counts;
  EXPECT_EQ(counts.n_additions, 3);
  EXPECT_EQ(counts.n_bypassed, 2 * (kBlock - kSlow) + 8 * kBlock - kSlow);
}

TEST_P(Gate, LaterTokensTeachEarlierOnesNothing) {
  const std::string start =
      times(AdaptiveBasis::kBlock - 3, 'f') + "abc" + "aabbcc" + times(60, 'd');
  const size_t kept = start.size() * kOut;
  std::vector<float> first = run(gsi(2), start + times(200, 'f'), 300).out;
  std::vector<float> second = run(gsi(2), start + times(200, 'e'), 300).out;
  first.resize(kept);
  second.resize(kept);
  // How many rows of a pass are fast decides the order of sums.
  EXPECT_CLOSE(second, first, kRoundOff);
}

TEST_P(Gate, SequencesTeachThemselvesAlone) {
  const std::string one = times(AdaptiveBasis::kBlock, 'a') + "aabb";
  const std::string two = times(AdaptiveBasis::kBlock, 'b') + "aabb";
  LinearGate gate(*backend, group, gsi(2), 2, std::make_shared<LinearScratch>());
  std::vector<float> rows = rows_of(one + two), out((one + two).size() * kOut, 1.0f);
  const auto n = static_cast<int64_t>(one.size() + two.size());
  gate.run({.weights = nullptr,
            .x = ConstTensor(rows.data(), DType::kF32, {n, kIn}),
            .accumulate = true,
            .out = Tensor(out.data(), DType::kF32, {n, kOut})},
           -1);
  EXPECT_EQ(gate.counts().n_additions, 2);
  EXPECT_EQ(gate.counts().n_fast, 2 + 2);  // each knows its own letter
}

TEST_P(Gate, AResetForgetsWhatASequenceTaught) {
  const std::string text = times(AdaptiveBasis::kBlock, 'a') + "aaa";
  LinearGate gate(*backend, group, gsi(2), 1, std::make_shared<LinearScratch>());
  const Outcome first = run(gate, text, 50);
  gate.reset();
  EXPECT_EQ(gate.counts().n_tokens, 0);
  const Outcome second = run(gate, text, 50);
  EXPECT_SAME_BITS(second.out, first.out);
  EXPECT_EQ(second.counts.n_fast, 3);
}

TEST_P(Gate, GradedRowsKeepFewOrAll) {
  // 'f' has two numbers of eight, so columns are read; zeros alone are left out at epsilon 0.
  const GroupPlan zeros{.kind = LinearKind::kGraded, .epsilon = 0};
  const Outcome found = run(zeros, "fab", 1);
  EXPECT_CLOSE(found.out, dense("fab"), kRoundOff);
  EXPECT_EQ(found.counts.n_kept, 2 + 3 + 2);  // row[1] of the third token is zero
  EXPECT_EQ(found.counts.elements, static_cast<double>(found.counts.n_kept * kOut));
  const Outcome together = run(zeros, "fab", 3);
  EXPECT_CLOSE(together.out, dense("fab"), kRoundOff);
  EXPECT_EQ(together.counts.n_kept, found.counts.n_kept);
  // sqrt(1 - 4 / (4 + 1.16)) of 'a' is about 0.47: its axis alone is kept.
  const GroupPlan coarse{.kind = LinearKind::kGraded, .epsilon = 0.6};
  EXPECT_EQ(run(coarse, "a", 1).counts.n_kept, 1);
}

INSTANTIATE_TEST_SUITE_P(Both, Gate, testing::Values("reference", "cpu"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace sluice::impl::test
