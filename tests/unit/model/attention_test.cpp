// What must hold of representative-token attention in every family: the identities with dense
// attention, the future that changes nothing, and pieces that give what the whole gives.
// docs/algorithm.md, section 3.

#include "parity/compare.h"
#include "sanitized.h"
#include "unit/model/family_models.h"

namespace sluice::impl::test {
namespace {

class EveryFamily : public FamilyTest {
 protected:
  std::vector<float> run(const AttentionPlan& plan, const std::vector<int32_t>& text,
                         std::vector<TokenSet>* sets = nullptr) {
    KvCache cache = model->make_cache(1, 0, plan);
    auto out = hidden_of(*model, text, cache);
    if (sets != nullptr) *sets = sets_of(cache);
    return out;
  }

  // Pieces, single tokens among them.
  std::vector<float> run_in_pieces(const AttentionPlan& plan, std::vector<TokenSet>& sets) {
    KvCache cache = model->make_cache(1, 0, plan);
    auto pieces = hidden_in_pieces(*model, tokens, cache);
    sets = sets_of(cache);
    return pieces;
  }

  AttentionPlan plan(UniformAttention choice) const {
    return uniform_plan(choice, model->plan_shape());
  }
  // Blocks small enough that short texts have far keys.
  UniformAttention choice(AttentionMode mode, SelectRule rule, double tau) const {
    UniformAttention choice;
    choice.mode = mode;
    choice.rule = rule;
    choice.tau = tau;
    choice.window = 16;
    choice.block = 16;
    return choice;
  }

  // The same sum in two orders: round-off of some hundred additions in each of 2 layers in f32, one
  // step of bf16 for each of the 2 layers (as in chunks_test.cpp).
  double round_off(const std::vector<float>& values) const {
    return (setup().dtype == DType::kF32 ? 5e-6 : 2 * 0x1p-7) * range_of(values);
  }

  size_t width() const { return static_cast<size_t>(model->spec().d_model); }

  // The reference is slow; 37 tokens have far keys too.
  const std::vector<int32_t> tokens =
      repeating_tokens(setup().is_reference() ? 37 : family().n_tokens);
};

TEST_P(EveryFamily, TauZeroEqualsDense) {
  const auto dense = run({}, tokens);
  for (const AttentionMode mode : {AttentionMode::kKeys, AttentionMode::kCopy})
    EXPECT_CLOSE(run(plan(choice(mode, SelectRule::kCascadeCover, 0)), tokens), dense,
                 round_off(dense));
  EXPECT_CLOSE(run(plan(choice(AttentionMode::kPaper, SelectRule::kCascadePaper, 0)), tokens),
               dense, round_off(dense));
}

TEST_P(EveryFamily, MergingChangesTheResult) {
  const auto dense = run({}, tokens);
  for (const AttentionMode mode :
       {AttentionMode::kKeys, AttentionMode::kCopy, AttentionMode::kPaper}) {
    std::vector<TokenSet> sets;
    const auto merged =
        run(plan(choice(mode, SelectRule::kIndependent, family().tau)), tokens, &sets);
    double difference = 0;
    for (size_t i = 0; i < dense.size(); ++i)
      difference = std::max(difference, std::abs(double{merged[i]} - dense[i]));
    EXPECT_GT(difference, 1e-4 * range_of(dense)) << mode_name(mode);
    EXPECT_LT(sets[0].n_clusters, static_cast<int64_t>(tokens.size()));
    EXPECT_GT(sets[0].n_clusters, 1);
  }
}

TEST_P(EveryFamily, AWindowOfTheWholeTextEqualsDense) {
  if (is_encoder(family())) GTEST_SKIP() << "encoders have no window";
  const auto dense = run({}, tokens);
  UniformAttention wide = choice(AttentionMode::kKeys, SelectRule::kCascadeCover, family().tau);
  wide.window = 1024;
  EXPECT_CLOSE(run(plan(wide), tokens), dense, round_off(dense));
}

TEST_P(EveryFamily, TheFutureChangesNothing) {
  if (is_encoder(family())) GTEST_SKIP() << "encoders see the future";
  const size_t kept = tokens.size() * 2 / 3;
  auto changed = tokens;
  for (size_t i = kept; i < changed.size(); ++i) changed[i] = 20 + static_cast<int32_t>(i % 30);
  for (const AttentionMode mode : {AttentionMode::kKeys, AttentionMode::kCopy})
    for (const SelectRule rule : {SelectRule::kIndependent, SelectRule::kGreedy,
                                  SelectRule::kCascadeCausal, SelectRule::kCascadeCover}) {
      // The reference is slow, and its selector is tested with every rule elsewhere.
      if (setup().is_reference() && rule != SelectRule::kIndependent &&
          rule != SelectRule::kCascadeCover)
        continue;
      // Of the height of `copy`'s products on a device: cuda_model_test.cpp.
      if (setup().on_device() && mode == AttentionMode::kCopy) continue;
      SCOPED_TRACE(std::string(mode_name(mode)) + " " + std::string(rule_name(rule)));
      const AttentionPlan both = plan(choice(mode, rule, family().tau));
      std::vector<TokenSet> sets, other_sets;
      auto first = run(both, tokens, &sets), second = run(both, changed, &other_sets);
      EXPECT_NE(first, second);
      first.resize(kept * width());
      second.resize(kept * width());
      // The height of `copy`'s products depends on the future, and with it the order of sums.
      if (mode == AttentionMode::kKeys || setup().is_reference())
        EXPECT_SAME_BITS(second, first);
      else
        EXPECT_CLOSE(second, first, round_off(first));
      for (size_t layer = 0; layer < sets.size(); ++layer)
        for (size_t t = 0; t < kept; ++t) {
          ASSERT_EQ(sets[layer].status[t], other_sets[layer].status[t]);
          ASSERT_EQ(sets[layer].owner[t], other_sets[layer].owner[t]);
        }
    }
}

TEST_P(EveryFamily, ThePapersAttentionLeaksTheFuture) {
  if (is_encoder(family())) GTEST_SKIP() << "encoders see the future";
  if (setup().dtype != DType::kF32) GTEST_SKIP() << "a leak may be smaller than a step of bf16";
  const size_t n = tokens.size(), kept = n * 2 / 3;
  // Half of the tokens from a few, half from many, so that a later token can be the nearest
  // representative of an earlier one. Some ending at some tau shows it; not every one must.
  const auto text = [&](uint32_t seed) {
    std::vector<int32_t> mixed = repeating_tokens(static_cast<int64_t>(n), seed);
    for (size_t i = 0; i < n; i += 2)
      mixed[i] = static_cast<int32_t>(3 + (i * 31 + seed * 17 + i * i) % 58);
    return mixed;
  };
  bool leaks = false;
  for (const double tau : {0.5, 0.7, 0.9}) {
    const AttentionPlan paper = plan(choice(AttentionMode::kPaper, SelectRule::kCascadePaper, tau));
    auto first = run(paper, text(1));
    first.resize(kept * width());
    for (uint32_t seed = 2; seed < 6 && !leaks; ++seed) {
      auto changed = text(seed);
      const auto beginning = text(1);
      std::copy_n(beginning.begin(), kept, changed.begin());
      auto second = run(paper, changed);
      second.resize(kept * width());
      double difference = 0;
      for (size_t i = 0; i < first.size(); ++i)
        difference = std::max(difference, std::abs(double{first[i]} - second[i]));
      leaks = difference > 100 * round_off(first);
    }
  }
  EXPECT_TRUE(leaks);
}

TEST_P(EveryFamily, PiecesAndSingleTokensGiveWhatTheWholeGives) {
  if (is_encoder(family())) GTEST_SKIP() << "encoders see a text whole";
  for (const AttentionMode mode : {AttentionMode::kKeys, AttentionMode::kCopy})
    for (const FarKey far : {FarKey::kCentroid, FarKey::kValues, FarKey::kOwn}) {
      if (far != FarKey::kCentroid && (mode == AttentionMode::kCopy || setup().is_reference()))
        continue;
      SCOPED_TRACE(std::string(mode_name(mode)) + " " + std::string(far_name(far)));
      UniformAttention uniform = choice(mode, SelectRule::kCascadeCover, family().tau);
      uniform.far = far;
      std::vector<TokenSet> sets, sets_of_pieces;
      auto whole = run(plan(uniform), tokens, &sets);
      auto pieces = run_in_pieces(plan(uniform), sets_of_pieces);
      for (size_t layer = 0; layer < sets.size() && !is_order_sensitive(); ++layer)
        EXPECT_EQ(sets_of_pieces[layer].cluster, sets[layer].cluster);
      const size_t compared = n_decided_alike(sets, sets_of_pieces) * width();
      whole.resize(compared);
      pieces.resize(compared);
      EXPECT_CLOSE(pieces, whole, round_off(whole));
    }
}

TEST_P(EveryFamily, SequencesOfABatchAreChosenApart) {
  const AttentionPlan keys =
      plan(choice(AttentionMode::kKeys, SelectRule::kCascadeCover, family().tau));
  const auto second = repeating_tokens(static_cast<int64_t>(tokens.size()), 5);
  auto both = tokens;
  both.insert(both.end(), second.begin(), second.end());
  KvCache cache = model->make_cache(2, 0, keys);
  const auto together = hidden_of(*model, both, cache);
  const size_t half = together.size() / 2;
  for (const int64_t sequence : {0, 1}) {
    std::vector<TokenSet> sets;
    auto expected = run(keys, sequence == 0 ? tokens : second, &sets);
    const size_t compared = n_decided_alike(sets, sets_of(cache, sequence)) * width();
    const auto begin = together.begin() + static_cast<int64_t>(half) * sequence;
    expected.resize(compared);
    EXPECT_CLOSE(std::vector(begin, begin + static_cast<int64_t>(compared)), expected,
                 round_off(expected));
  }
}

TEST_P(EveryFamily, ABatchInPiecesGivesWhatItsSequencesGiveWhole) {
  if (is_encoder(family())) GTEST_SKIP() << "encoders see a text whole";
  const size_t n = tokens.size();
  const std::vector<int32_t> texts[] = {tokens, repeating_tokens(static_cast<int64_t>(n), 5)};
  for (const AttentionMode mode : {AttentionMode::kKeys, AttentionMode::kCopy})
    for (const bool reuse : {false, true}) {
      if (setup().is_reference() && (reuse || mode == AttentionMode::kCopy)) continue;  // slow
      SCOPED_TRACE(std::string(mode_name(mode)) + (reuse ? ", reused" : ""));
      AttentionPlan both = plan(choice(mode, SelectRule::kCascadeCover, family().tau));
      both.layers[1].reuse = reuse;
      KvCache cache = model->make_cache(2, 0, both);
      std::vector<float> in_pieces[2];
      size_t begin = 0;
      for (const size_t end : {n / 2, n / 2 + 7, n / 2 + 8, n / 2 + 9, n - 2, n - 1, n}) {
        std::vector<int32_t> piece;
        for (const auto& text : texts)
          piece.insert(piece.end(), text.data() + begin, text.data() + end);
        const auto part = hidden_of(*model, piece, cache);
        for (size_t s = 0; s < 2; ++s)
          in_pieces[s].insert(in_pieces[s].end(), part.data() + s * part.size() / 2,
                              part.data() + (s + 1) * part.size() / 2);
        begin = end;
      }
      for (size_t s = 0; s < 2; ++s) {
        std::vector<TokenSet> sets;
        auto whole = run(both, texts[s], &sets);
        const size_t compared =
            n_decided_alike(sets, sets_of(cache, static_cast<int64_t>(s))) * width();
        whole.resize(compared);
        in_pieces[s].resize(compared);
        EXPECT_CLOSE(in_pieces[s], whole, round_off(whole));
      }
    }
}

TEST_P(EveryFamily, AResetCacheStartsAnew) {
  const AttentionPlan keys =
      plan(choice(AttentionMode::kKeys, SelectRule::kCascadeCover, family().tau));
  KvCache cache = model->make_cache(1, 0, keys);
  const auto first = hidden_of(*model, tokens, cache);
  cache.truncate(0);
  EXPECT_SAME_BITS(hidden_of(*model, tokens, cache), first);
}

TEST_P(EveryFamily, FromALaterLayerTheEarlierOnesStayDense) {
  UniformAttention late = choice(AttentionMode::kKeys, SelectRule::kCascadeCover, family().tau);
  late.from_layer = 1;
  KvCache cache = model->make_cache(1, 0, plan(late));
  hidden_of(*model, tokens, cache);
  EXPECT_EQ(cache.selector(0), nullptr);
  ASSERT_NE(cache.selector(1), nullptr);
  EXPECT_EQ(cache.selector(1)->spec().rule, SelectRule::kGreedy);
}

// That each head goes by its own set: layer_attention_test.cpp.
TEST_P(EveryFamily, HeadsOfDifferentTauHaveTheSetsOfThatTau) {
  if (model->spec().n_kv_heads < 2) GTEST_SKIP() << "one key/value head";
  const auto uniform = [&](double tau) {
    return plan(choice(AttentionMode::kKeys, SelectRule::kCascadeCover, tau));
  };
  // Unlike tokens have cosines around 0, and 0.95 is a threshold of 0.1.
  const double smaller = family().tau, larger = 0.95;
  AttentionPlan mixed = uniform(larger);
  mixed.layers[0].heads[1].tau = smaller;
  std::vector<TokenSet> of_smaller, of_larger;
  run(uniform(smaller), tokens, &of_smaller);
  run(uniform(larger), tokens, &of_larger);
  KvCache cache = model->make_cache(1, 0, mixed);
  hidden_of(*model, tokens, cache);
  const std::vector<TokenSet>& sets = cache.selector(0)->sets();
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_EQ(sets[0].cluster, of_smaller[0].cluster);
  EXPECT_EQ(sets[1].cluster, of_larger[0].cluster);
  EXPECT_NE(sets[0].cluster, sets[1].cluster);
}

TEST_P(EveryFamily, ALayerMayReuseTheSetsOfTheLayerBefore) {
  for (const AttentionMode mode : {AttentionMode::kKeys, AttentionMode::kCopy}) {
    SCOPED_TRACE(mode_name(mode));
    AttentionPlan reusing = plan(choice(mode, SelectRule::kCascadeCover, family().tau));
    std::vector<TokenSet> chosen, reused;
    const auto validated = run(reusing, tokens, &chosen);
    reusing.layers[1].reuse = true;
    const auto whole = run(reusing, tokens, &reused);
    EXPECT_EQ(reused[0].cluster, chosen[0].cluster);
    EXPECT_EQ(reused[1].cluster, chosen[0].cluster);
    EXPECT_NE(chosen[1].cluster, chosen[0].cluster);
    EXPECT_NE(whole, validated);
    if (is_encoder(family())) continue;
    std::vector<TokenSet> in_pieces;
    EXPECT_CLOSE(run_in_pieces(reusing, in_pieces), whole, round_off(whole));
    EXPECT_EQ(in_pieces[1].cluster, chosen[0].cluster);
  }
}

TEST_P(EveryFamily, TheFirstSelectedLayerHasNothingToReuse) {
  AttentionPlan keys = plan(choice(AttentionMode::kKeys, SelectRule::kCascadeCover, family().tau));
  keys.layers[0].reuse = true;
  EXPECT_THROW(model->make_cache(1, 0, keys), Error);
}

TEST_P(EveryFamily, TheCacheWeighsAllItsParts) {
  for (const AttentionMode mode : {AttentionMode::kKeys, AttentionMode::kCopy}) {
    SCOPED_TRACE(mode_name(mode));
    KvCache cache =
        model->make_cache(1, 0, plan(choice(mode, SelectRule::kCascadeCover, family().tau)));
    hidden_of(*model, tokens, cache);
    const CacheMemory memory = cache.memory();
    int64_t n_outputs = 0;
    for (int64_t layer = 0; mode == AttentionMode::kCopy && layer < 2; ++layer)
      n_outputs += cache.selector(layer)->sets()[0].n_clusters;
    EXPECT_EQ(memory.bytes.outputs, n_outputs * model->spec().d_model * 4);
    EXPECT_GT(memory.bytes.selection_rows, 0);
    EXPECT_EQ(memory.bytes.total(), memory.bytes.keys_values.exact +
                                        memory.bytes.keys_values.clusters +
                                        memory.bytes.selection_rows + memory.bytes.outputs);
    EXPECT_EQ(memory.n_tokens, static_cast<int64_t>(tokens.size()));
    EXPECT_EQ(memory.dense_bytes,
              KvCache::bytes_needed(model->spec(), setup().dtype, 1, memory.n_tokens));
  }
}

std::vector<ModelSetup> setups() {
  std::vector<ModelSetup> all = family_setups();
  std::erase_if(all,
                [](const ModelSetup& s) { return s.is_reference() && s.dtype != DType::kF32; });
  return all;
}

INSTANTIATE_TEST_SUITE_P(Attention, EveryFamily,
                         testing::Combine(testing::ValuesIn(thinned(family_cases(), 3)),
                                          testing::ValuesIn(setups())),
                         family_test_name);

}  // namespace
}  // namespace sluice::impl::test
