// Selection with a basis (docs/algorithm.md, section 5) gives the sets of selection without, to the
// last bit of a cosine, whatever the basis; and a good basis decides most pairs.

#include <filesystem>
#include <fstream>

#include "model/model.h"
#include "parity/basis_cases.h"
#include "sanitized.h"

namespace sluice::test {
namespace {

const std::vector<double> kTaus = {0.3, 0.5, 0.8};

std::shared_ptr<const SelectionBasis> random_basis(int64_t rank, int64_t d_model, uint32_t seed) {
  return basis_of({}, rank, d_model, seed);
}

// Ranks from one to all; of the rows themselves, or useless.
std::vector<std::shared_ptr<const SelectionBasis>> bases_for(const SelectInputs& in,
                                                             uint32_t seed) {
  const int64_t d = in.spec.d_model;
  return {random_basis(1, d, seed), basis_of(in.rows, (d + 3) / 4, d, seed),
          random_basis((d + 1) / 2, d, seed), basis_of(in.rows, d, d, seed)};
}

TEST_P(EveryImplementation, ABasisChangesNoSet) {
  uint32_t seed = 900;
  for (const RowKind kind : kRowKinds)
    for (const int64_t n_tokens : {1, 7, 40})
      for (const int64_t d_model : {1, 3, 37})
        for (const SelectRule rule : kAllRules) {
          ++seed;
          const SelectCase c{kind, n_tokens, d_model, kTaus[seed % kTaus.size()], seed};
          SCOPED_TRACE(testing::PrintToString(c) + ", rule " +
                       std::to_string(static_cast<int>(rule)));
          SelectInputs in = select_inputs(c, dtype(), rule, kTaus);
          in.spec.sinks = seed % 3;
          in.spec.outlier_ratio = seed % 4 == 0 ? 1.1 : 0;
          in.spec.owner = static_cast<OwnerKind>(seed / 2 % 3);
          // Tokens of one pass are compared at full width; those of earlier ones are what a basis
          // is for.
          const bool cut = n_tokens > 1 && in.spec.owner == OwnerKind::kEarlier &&
                           rule != SelectRule::kCascadePaper;
          const std::vector<int64_t> cuts =
              cut ? std::vector<int64_t>{n_tokens / 3, n_tokens / 3 + 1} : std::vector<int64_t>{};
          const auto plain = select(*backend, dtype(), in);
          in.spec.basis_use = BasisUse::kAlways;
          for (const auto& basis : bases_for(in, seed)) {
            in.spec.basis = basis;
            ASSERT_TRUE(same_sets(select(*backend, dtype(), in, cuts), plain))
                << "rank " << basis->rank();
          }
        }
}

// Several passes, and as many columns as it takes for a basis to be tried.
TEST_P(EveryBackend, ABasisChangesNoLargeSet) {
  if (kSanitized && dtype() == DType::kBF16)
    GTEST_SKIP() << "as long again under a sanitizer; small sets run there";
  const SelectCase cases[] = {
      {RowKind::kRandom, 300, 64, 0.8, 1},         {RowKind::kClusters, 900, 64, 0.5, 2},
      {RowKind::kChain, 400, 64, 0.3, 3},          {RowKind::kDuplicates, 513, 64, 0.3, 5},
      {RowKind::kLattice, 600, 64, 0.5, 6},        {RowKind::kNearThreshold, 300, 64, 0.3, 7},
      {RowKind::kNearThreshold, 320, 193, 0.5, 8}, {RowKind::kClusters, 300, 700, 0.5, 12}};
  for (const SelectCase& c : cases) {
    const int64_t d = c.d_model;
    const auto rows = select_rows(c, dtype());
    const auto bases = {random_basis(4, d, c.seed), basis_of(rows, d / 8, d, c.seed),
                        basis_of(rows, d / 2, d, c.seed)};
    for (const SelectRule rule : kAllRules) {
      SCOPED_TRACE(testing::PrintToString(c) + ", rule " + std::to_string(static_cast<int>(rule)));
      SelectInputs in = select_inputs(c, dtype(), rule, {c.tau, 0.6});
      in.spec.sinks = c.seed % 2 == 0 ? 4 : 0;
      const bool cut = rule != SelectRule::kCascadePaper && c.seed % 2 == 0;
      if (!cut) in.spec.owner = static_cast<OwnerKind>((c.seed + static_cast<uint32_t>(rule)) % 3);
      const std::vector<int64_t> cuts =
          cut ? std::vector<int64_t>{c.n_tokens / 3, c.n_tokens / 3 + 1} : std::vector<int64_t>{};
      const auto plain = select(*backend, dtype(), in);
      for (const auto& basis : bases) {
        in.spec.basis = basis;
        for (const BasisUse use : {BasisUse::kWherePays, BasisUse::kAlways}) {
          in.spec.basis_use = use;
          ASSERT_TRUE(same_sets(select(*backend, dtype(), in, cuts), plain))
              << "rank " << basis->rank();
        }
      }
    }
  }
}

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

// The deviation from orthonormal vectors is part of the bound: rows along the vectors' sum, whose
// coordinates a basis that is too short or too long gets wrong, right at the threshold.
TEST_P(EveryImplementation, ABasisThatIsNotQuiteOrthonormalChangesNoSet) {
  for (const float scale : {0.99992f, 1.00008f})
    for (uint32_t seed = 1; seed <= 20; ++seed) {
      const SelectCase c{RowKind::kNearThreshold, 60, 16, kTaus[seed % 3], seed};
      SelectInputs in = select_inputs(c, dtype(), SelectRule::kCascadeCausal, {c.tau});
      const auto plain = select(*backend, dtype(), in);
      const auto exact = basis_of(in.rows, 5 + seed % 12, 16, seed);
      std::vector<float> vectors(exact->vectors().begin(), exact->vectors().end());
      for (float& x : vectors) x *= scale;
      for (size_t i = 0; i < 16; ++i) vectors[i] += 1e-4f * vectors[16 + i];
      in.spec.basis = std::make_shared<SelectionBasis>(exact->rank(), 16, vectors);
      in.spec.basis_use = BasisUse::kAlways;
      ASSERT_TRUE(same_sets(select(*backend, dtype(), in), plain)) << "seed " << seed;
    }
}

// Rows that a trained model makes of a text, with bases of another part of the text.
class TrainedRows : public testing::TestWithParam<const char*> {};

TEST_P(TrainedRows, ABasisChangesNoSet) {
  namespace fs = std::filesystem;
  const fs::path shared = SLUICE_SHARED_DIR, folder = shared / "models" / GetParam();
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
}  // namespace sluice::test
