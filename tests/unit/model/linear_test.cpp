// What must hold of gated and graded linear layers in every family: the identities with dense
// layers, the future that changes nothing, and pieces that give what the whole gives.
// docs/algorithm.md, section 4.

#include "parity/compare.h"
#include "sanitized.h"
#include "unit/model/family_models.h"
#include "unit/model/full_bases.h"
#include "unit/subspace/random_matrices.h"

namespace sluice::impl::test {
namespace {

class EveryLinear : public FamilyTest {
 protected:
  std::vector<float> run(const LinearPlan& linear, const std::vector<int32_t>& text,
                         const AttentionPlan& attention = {}, LinearCounts* counts = nullptr,
                         std::vector<TokenSet>* sets = nullptr) {
    KvCache cache = model->make_cache(1, 0, attention, linear);
    auto out = hidden_of(*model, text, cache);
    if (counts != nullptr) *counts = counts_of(cache);
    if (sets != nullptr) *sets = sets_of(cache);
    return out;
  }

  // Pieces, single tokens among them.
  std::vector<float> run_in_pieces(const LinearPlan& linear, LinearCounts& counts) {
    KvCache cache = model->make_cache(1, 0, {}, linear);
    auto pieces = hidden_in_pieces(*model, tokens, cache);
    counts = counts_of(cache);
    return pieces;
  }

  LinearCounts counts_of(const KvCache& cache) const {
    LinearCounts sum;
    for (int64_t layer = 0; layer < model->spec().n_layers; ++layer)
      for (const BasisInput input : kLinearInputs)
        if (const LinearGate* gate = cache.gate(layer, input)) sum += gate->counts();
    return sum;
  }

  // A plan of one kind for every group; rank 0 stands for the width of the rows.
  LinearPlan plan(LinearKind kind, int64_t rank, double epsilon) {
    LinearPlan linear;
    linear.layers.resize(static_cast<size_t>(model->spec().n_layers));
    for (LayerLinearPlan& layer : linear.layers)
      for (const BasisInput input : kLinearInputs)
        layer.of(input) = {.kind = kind,
                           .rank = rank > 0 ? rank : model->spec().row_widths().of(input),
                           .epsilon = epsilon,
                           .adaptive = 0};
    return linear;
  }

  // Bases of the first rows that each group reads in a dense run, so that those tokens and what is
  // like them lie within, and others do not.
  Bases bases_of_rows(int64_t rank) {
    Bases bases;
    model->observe_linear([&](const LinearSeen& seen) {
      const auto rows = floats_of(model->backend(), seen.rows.rows_from(0, rank));
      std::vector<double> wide(rows.begin(), rows.end());
      blas::orthonormalise(wide, seen.rows.row_elements());
      bases.list.push_back({.layer = seen.layer,
                            .input = seen.input,
                            .d = seen.rows.row_elements(),
                            .rank = rank,
                            .vectors = as_floats(wide),
                            .spectrum = {}});
    });
    run({}, tokens);
    model->observe_linear({});
    return bases;
  }

  // Some of the tokens are fast, others slow: a gate that tells them apart whatever the round-off.
  LinearPlan mixed_plan() {
    const Bases bases = bases_of_rows(kRank);
    const LinearPlan linear = plan(LinearKind::kGsi, kRank, gate_epsilon());
    model->prepare_linear(linear, &bases);
    return linear;
  }

  // The same sums in another order, as in attention_test.cpp.
  double round_off(const std::vector<float>& values) const {
    return (setup().dtype == DType::kF32 ? 5e-6 : 2 * 0x1p-7) * range_of(values);
  }
  // Through a basis: a row is projected and multiplied by the image, which takes two sums instead
  // of one, and the gate lets pass what misses no more than its epsilon. In bf16 directions,
  // coordinates and image are rounded for each of the four groups, in addition to the ten tensors
  // of docs/architecture.md, "Numbers": 3 u sqrt(22 L + 2).
  double basis_round_off(const std::vector<float>& values) const {
    const auto n_layers = static_cast<double>(model->spec().n_layers);
    return (setup().dtype == DType::kF32 ? 2 * 5e-6 + gate_epsilon()
                                         : 3 * 0x1p-9 * std::sqrt(22 * n_layers + 2)) *
           range_of(values);
  }

  static constexpr int64_t kRank = 4;
  // Above what a row within the span misses by round-off (bf16: 2^-8), and small enough that what
  // passes it is that round-off, or less than the bounds below allow.
  double gate_epsilon() const { return setup().dtype == DType::kF32 ? 1e-5 : 0.02; }
  // The reference is slow.
  const std::vector<int32_t> tokens =
      repeating_tokens(setup().is_reference() ? 19 : family().n_tokens);
};

TEST_P(EveryLinear, AFullRankBasisEqualsDense) {
  const auto dense = run({}, tokens);
  const Bases bases = full_bases(model->spec());
  const LinearPlan full = plan(LinearKind::kGsi, 0, gate_epsilon());
  model->prepare_linear(full, &bases);
  LinearCounts counts;
  EXPECT_CLOSE(run(full, tokens, {}, &counts), dense, basis_round_off(dense));
  EXPECT_EQ(counts.n_fast, counts.n_tokens);
  EXPECT_GT(counts.elements, counts.dense_elements);  // V is read on top
}

TEST_P(EveryLinear, EpsilonZeroEqualsDense) {
  const auto dense = run({}, tokens);
  const Bases bases = bases_of_rows(kRank);
  const LinearPlan gsi = plan(LinearKind::kGsi, kRank, 0), graded = plan(LinearKind::kGraded, 0, 0);
  model->prepare_linear(gsi, &bases);
  model->prepare_linear(graded, nullptr);
  LinearCounts counts;
  EXPECT_CLOSE(run(gsi, tokens, {}, &counts), dense, round_off(dense));
  EXPECT_LT(counts.n_fast, counts.n_tokens);
  EXPECT_CLOSE(run(graded, tokens, {}, &counts), dense, round_off(dense));
  EXPECT_LE(counts.elements, counts.dense_elements);
  if (family().config.at("model_type") == "opt") {
    EXPECT_LT(counts.elements, counts.dense_elements);  // zeros behind ReLU
  }
}

TEST_P(EveryLinear, GradingLeavesOutWhatItMay) {
  const auto dense = run({}, tokens);
  const LinearPlan graded = plan(LinearKind::kGraded, 0, 0.3);
  model->prepare_linear(graded, nullptr);
  LinearCounts counts;
  const auto out = run(graded, tokens, {}, &counts);
  EXPECT_LT(counts.elements, 0.95 * counts.dense_elements);
  EXPECT_GT(counts.elements, 0.2 * counts.dense_elements);
  double difference = 0;
  for (size_t i = 0; i < dense.size(); ++i)
    difference = std::max(difference, std::abs(double{out[i]} - dense[i]));
  EXPECT_GT(difference, round_off(dense));
  // Gemma's norms behind attention and MLP bring what is left of their sums back to full size,
  // errors included.
  const bool post_norms = family().config.at("model_type") == "gemma3_text";
  EXPECT_LT(difference, (post_norms ? 1.0 : 0.5) * range_of(dense));
}

TEST_P(EveryLinear, RowsNearTheBasisAreFastAndExact) {
  const auto dense = run({}, tokens);
  LinearCounts counts;
  EXPECT_CLOSE(run(mixed_plan(), tokens, {}, &counts), dense, basis_round_off(dense));
  EXPECT_GT(counts.n_fast, 4 * model->spec().n_layers);
  EXPECT_LT(counts.n_fast, counts.n_tokens);
  EXPECT_EQ(counts.residuals.count() + counts.n_bypassed, counts.n_tokens);
}

TEST_P(EveryLinear, TheFutureChangesNothing) {
  if (is_encoder(family())) GTEST_SKIP() << "encoders see the future";
  const size_t kept = tokens.size() * 2 / 3;
  auto changed = tokens;
  for (size_t i = kept; i < changed.size(); ++i) changed[i] = 20 + static_cast<int32_t>(i % 30);
  const auto width = static_cast<size_t>(model->spec().d_model);
  const LinearPlan mixed = mixed_plan(), graded = plan(LinearKind::kGraded, 0, 0.3);
  model->prepare_linear(graded, nullptr);
  for (const LinearPlan& linear : {mixed, graded}) {
    auto first = run(linear, tokens), second = run(linear, changed);
    EXPECT_NE(first, second);
    first.resize(kept * width);
    second.resize(kept * width);
    // How many rows are fast decides the height of products, and with it the order of sums.
    if (setup().is_reference())
      EXPECT_SAME_BITS(second, first);
    else
      EXPECT_CLOSE(second, first, round_off(first));
  }
}

TEST_P(EveryLinear, PiecesAndSingleTokensGiveWhatTheWholeGives) {
  if (is_encoder(family())) GTEST_SKIP() << "encoders see a text whole";
  const LinearPlan linear = mixed_plan();
  LinearCounts whole_counts, counts;
  const auto whole = run(linear, tokens, {}, &whole_counts);
  EXPECT_CLOSE(run_in_pieces(linear, counts), whole, round_off(whole));
  EXPECT_EQ(counts.n_fast, whole_counts.n_fast);
  EXPECT_EQ(counts.n_bypassed, whole_counts.n_bypassed);
  EXPECT_EQ(counts.elements, whole_counts.elements);
}

TEST_P(EveryLinear, SequencesOfABatchAreGatedApart) {
  const LinearPlan linear = mixed_plan();
  const auto second = repeating_tokens(static_cast<int64_t>(tokens.size()), 5);
  auto both = tokens;
  both.insert(both.end(), second.begin(), second.end());
  LinearCounts first_counts, second_counts;
  auto expected = run(linear, tokens, {}, &first_counts);
  const auto other = run(linear, second, {}, &second_counts);
  expected.insert(expected.end(), other.begin(), other.end());
  KvCache cache = model->make_cache(2, 0, {}, linear);
  EXPECT_CLOSE(hidden_of(*model, both, cache), expected, round_off(expected));
  // An encoder's rows lie at all distances from the basis, some within round-off of epsilon.
  const int64_t n_unsure =
      is_order_sensitive() && is_encoder(family()) ? counts_of(cache).n_tokens / 100 : 0;
  EXPECT_LE(std::abs(counts_of(cache).n_fast - first_counts.n_fast - second_counts.n_fast),
            n_unsure);
}

TEST_P(EveryLinear, GatesGoWithAttentionOnRepresentatives) {
  const LinearPlan linear = mixed_plan();
  for (const AttentionMode mode : {AttentionMode::kKeys, AttentionMode::kCopy}) {
    UniformAttention choice;
    choice.mode = mode;
    choice.tau = family().tau;
    choice.window = 16;
    choice.block = 16;
    const AttentionPlan attention = uniform_plan(choice, model->plan_shape());
    LinearCounts counts;
    std::vector<TokenSet> sets, gated_sets;
    auto merged = run({}, tokens, attention, nullptr, &sets);
    auto out = run(linear, tokens, attention, &counts, &gated_sets);
    EXPECT_GT(counts.n_fast, 0);
    const size_t compared =
        n_decided_alike(sets, gated_sets) * static_cast<size_t>(model->spec().d_model);
    merged.resize(compared);
    out.resize(compared);
    EXPECT_CLOSE(out, merged, basis_round_off(merged));
  }
}

TEST_P(EveryLinear, JointSelectionChangesNothing) {
  UniformAttention choice;
  choice.mode = AttentionMode::kKeys;
  choice.tau = family().tau;
  choice.window = 16;
  choice.block = 16;
  const auto plain = run({}, tokens, uniform_plan(choice, model->plan_shape()));
  choice.joint = true;
  const AttentionPlan attention = uniform_plan(choice, model->plan_shape());
  EXPECT_THROW(model->make_cache(1, 0, attention, {}), Error);
  Bases bases;
  for (int64_t layer = 0; layer < model->spec().n_layers; ++layer)
    bases.list.push_back({.layer = layer,
                          .input = BasisInput::kSelectionNormed,
                          .d = model->spec().d_model,
                          .rank = kRank,
                          .vectors = as_floats(random_orthonormal(kRank, model->spec().d_model, 3)),
                          .spectrum = {}});
  model->prepare_selection(bases);
  EXPECT_SAME_BITS(run({}, tokens, attention), plain);
  const KvCache cache = model->make_cache(1, 0, attention, {});
  for (int64_t layer = 0; layer < model->spec().n_layers; ++layer)
    EXPECT_NE(cache.selector(layer)->spec().basis, nullptr);
}

TEST_P(EveryLinear, AResetCacheStartsAnew) {
  const LinearPlan linear = mixed_plan();
  KvCache cache = model->make_cache(1, 0, {}, linear);
  const auto first = hidden_of(*model, tokens, cache);
  const LinearCounts counts = counts_of(cache);
  cache.truncate(0);
  EXPECT_EQ(counts_of(cache).n_tokens, 0);
  EXPECT_SAME_BITS(hidden_of(*model, tokens, cache), first);
  EXPECT_EQ(counts_of(cache).n_fast, counts.n_fast);
  EXPECT_THROW(cache.truncate(1), InternalError);
}

INSTANTIATE_TEST_SUITE_P(All, EveryLinear,
                         testing::Combine(testing::ValuesIn(thinned(family_cases(), 3)),
                                          testing::ValuesIn(family_setups())),
                         family_test_name);

}  // namespace
}  // namespace sluice::impl::test
