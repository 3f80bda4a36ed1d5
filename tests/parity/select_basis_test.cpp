// What a basis decides (docs/algorithm.md, section 5): a good one most pairs, a useless one is
// given up, and that of a trained model changes no set.

#include <filesystem>
#include <fstream>

#include "model/model.h"
#include "parity/basis_cases.h"
#include "paths.h"
#include "sanitized.h"

namespace sluice::impl::test {
namespace {

// Rows in 8 of 384 dimensions, but for a little: 200 directions, and rows near them.
SelectInputs low_rank_inputs(DType dtype, SelectRule rule, float rest) {
  constexpr int64_t kTokens = 1200, kDirections = 200, kRank = 8, kWidth = 384;
  SelectInputs in = select_inputs({.n_tokens = kTokens, .d_model = kWidth}, dtype, rule, {0.3});
  if (inherits(rule)) in.inherited = {random_flags(kTokens, 5)};
  const auto along = random_values(kDirections * kRank, 3);
  const auto noise = random_values(kTokens * kRank, 4), off = random_values(kTokens * kWidth, 5);
  for (int64_t t = 0; t < kTokens; ++t)
    for (int64_t i = 0; i < kWidth; ++i) {
      const auto at = static_cast<size_t>(t * kWidth + i);
      in.rows[at] = rest * off[at];
      if (i < kRank)
        in.rows[at] += along[static_cast<size_t>(t % kDirections * kRank + i)] +
                       0.1f * noise[static_cast<size_t>(t * kRank + i)];
      in.rows[at] = rounded(dtype, in.rows[at]);
    }
  std::vector<float> axes(static_cast<size_t>(kRank * kWidth));
  for (int64_t i = 0; i < kRank; ++i) axes[static_cast<size_t>(i * kWidth + i)] = 1;
  in.spec.basis = std::make_shared<SelectionBasis>(kRank, kWidth, axes);
  return in;
}

struct Counted {
  std::vector<TokenSet> sets;
  int64_t products, dropped;
};
Counted counted(Backend& backend, DType dtype, const SelectInputs& in) {
  const auto selector = backend.make_selector(in.spec);
  extend(*selector, backend, dtype, in, 0, in.n_tokens);
  return {selector->sets(), selector->products(), selector->pairs_dropped()};
}

TEST_P(EveryImplementation, AGoodBasisDecidesMostPairs) {
  set_threads(2);  // rows of a block, which grows with them, are compared at full width
  for (const SelectRule rule :
       {SelectRule::kIndependent, SelectRule::kGreedy, SelectRule::kCascadeCover}) {
    SelectInputs in = low_rank_inputs(dtype(), rule, 0.02f);
    in.spec.basis_use = BasisUse::kAlways;  // whether it pays depends on the size of a tile
    const Counted joint = counted(*backend, dtype(), in);
    in.spec.basis = nullptr;
    const Counted plain = counted(*backend, dtype(), in);
    EXPECT_TRUE(same_sets(joint.sets, plain.sets));
    EXPECT_EQ(plain.dropped, 0);
    EXPECT_GT(joint.dropped, plain.products / 2) << "rule " << static_cast<int>(rule);
    EXPECT_LT(joint.products, plain.products / 2) << "rule " << static_cast<int>(rule);
  }
}

// The reference counts pair by pair: those that a rule compares are multiplied or dropped.
TEST(SelectBasis, ReferencePairsAreMultipliedOrDropped) {
  const auto reference = make_reference_backend(DType::kF32);
  SelectInputs in = low_rank_inputs(DType::kF32, SelectRule::kGreedy, 0.02f);
  const Counted joint = counted(*reference, DType::kF32, in);
  in.spec.basis = nullptr;
  EXPECT_EQ(joint.products + joint.dropped, counted(*reference, DType::kF32, in).products);
}

TEST_P(EveryBackend, AUselessBasisIsGivenUp) {
  SelectInputs in = low_rank_inputs(dtype(), SelectRule::kGreedy, 0.02f);
  in.spec.basis = nullptr;
  const Counted plain = counted(*backend, dtype(), in);
  in.spec.basis = random_basis(8, in.spec.d_model, 77);
  const Counted joint = counted(*backend, dtype(), in);
  EXPECT_EQ(joint.dropped, 0);
  EXPECT_EQ(joint.products, plain.products);
}

// Rows that a trained model makes of a text, with bases of another part of the text.
class TrainedRows : public testing::TestWithParam<const char*> {};

TEST_P(TrainedRows, ABasisChangesNoSet) {
  namespace fs = std::filesystem;
  const fs::path shared = test::shared_dir(), folder = shared / "models" / GetParam();
  const fs::path text = shared / "text" / "eval.txt";
  if (kSanitized && GetParam() != std::string_view("gpt2-nano"))
    GTEST_SKIP() << "one model is enough under a sanitizer";
  if (!fs::exists(folder / "config.json") || !fs::exists(text))
    GTEST_SKIP() << folder.string() << " or " << text.string() << " is not here";
  constexpr int64_t kTokens = 700;
  const auto checkpoint = open_checkpoint(folder);
  std::string start(20000, ' ');
  std::ifstream(text).read(start.data(), static_cast<int64_t>(start.size()));
  const auto ids = open_tokenizer_of(*checkpoint)->encode(start, false);
  ASSERT_GE(static_cast<int64_t>(ids.size()), 2 * kTokens);
  Model model(checkpoint, make_cpu_backend(DType::kF32), {});
  std::vector<std::vector<float>> seen[2];  // of each half of the text, per layer
  for (size_t half = 0; half < 2; ++half) {
    model.observe([&](const AttentionSeen& layer) {
      auto& rows = seen[half].emplace_back();
      for (int64_t t = 0; t < layer.input.rows(); ++t) {
        const float* row = layer.input.row<float>(t);
        rows.insert(rows.end(), row, row + layer.input.row_elements());
      }
    });
    KvCache cache = model.make_cache(1, kTokens);
    model.forward({ids.data() + half * kTokens, kTokens}, cache);
  }
  int64_t n_dropped = 0;
  const int64_t d = model.spec().d_model;
  for (size_t layer = 0; layer < seen[0].size(); ++layer) {
    const auto bases = {basis_of(seen[1][layer], d / 8, d, 1),
                        basis_of(seen[1][layer], d / 2, d, 1)};
    for (const double tau : {0.3, 0.5})
      for (const SelectRule rule : {SelectRule::kIndependent, SelectRule::kCascadeCover}) {
        SelectInputs in =
            select_inputs({.n_tokens = kTokens, .d_model = d}, DType::kF32, rule, {tau});
        in.rows = seen[0][layer];
        const Counted plain = counted(model.backend(), DType::kF32, in);
        for (const auto& basis : bases) {
          in.spec.basis = basis;
          in.spec.basis_use = BasisUse::kAlways;
          const Counted joint = counted(model.backend(), DType::kF32, in);
          ASSERT_TRUE(same_sets(joint.sets, plain.sets)) << "layer " << layer << ", tau " << tau;
          n_dropped += joint.dropped;
        }
      }
  }
  EXPECT_GT(n_dropped, 0);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, TrainedRows,
                         testing::Values("gpt2-nano", "gptj-nano", "opt-nano"));

TEST(SelectBasis, VectorsMustBeOrthonormal) {
  const auto refused = [](int64_t rank, int64_t d_model, std::vector<float> vectors) {
    EXPECT_THROW(SelectionBasis(rank, d_model, std::move(vectors)), Error);
  };
  refused(0, 3, {});
  refused(3, 2, {1, 0, 0, 1, 0, 0});
  refused(1, 2, {1.01f, 0});
  refused(2, 2, {1, 0, 0.01f, 1});
  refused(1, 2, {NAN, 0});
  refused(1, 2, {INFINITY, 0});
  EXPECT_NO_THROW(SelectionBasis(2, 2, {0.6f, 0.8f, -0.8f, 0.6f}));
}

}  // namespace
}  // namespace sluice::impl::test
