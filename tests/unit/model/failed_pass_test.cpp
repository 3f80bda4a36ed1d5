// A pass that fails halfway is in the caches of some layers: the next pass with that cache is an
// error, and after truncation to 0 the cache works as a new one.

#include "parity/compare.h"
#include "unit/model/family_models.h"

namespace sluice::impl::test {
namespace {

TEST(FailedPass, IsNotGoneOnFromUnsaid) {
  Model model = load(family_cases()[0], {"cpu", DType::kF32});
  UniformAttention choice;
  choice.mode = AttentionMode::kKeys;
  choice.tau = 0.8;
  AttentionPlan plan = uniform_plan(choice, model.plan_shape());
  plan.layers[1] = LayerPlan();  // dense, for which the observer is called
  const std::vector<int32_t> tokens = repeating_tokens(60);
  KvCache good = model.make_cache(1, 0, plan), cache = model.make_cache(1, 0, plan);
  const auto expected = hidden_of(model, tokens, good);

  model.observe([](const auto&) { throw Error("halfway"); });
  EXPECT_THROW(hidden_of(model, tokens, cache), Error);
  model.observe(nullptr);
  try {
    hidden_of(model, tokens, cache);
    ADD_FAILURE() << "went on";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("earlier pass"), std::string::npos) << error.what();
    EXPECT_FALSE(error.hint().empty());
  }
  cache.truncate(0);
  EXPECT_SAME_BITS(hidden_of(model, tokens, cache), expected);
}

// A tokenizer of another model may find none in a text.
TEST(FailedPass, OfNoTokensSaysSo) {
  Model model = load(family_cases()[0], {"cpu", DType::kF32});
  KvCache cache = model.make_cache();
  expect_error([&] { model.forward({}, cache); }, {"no tokens"});
}

}  // namespace
}  // namespace sluice::impl::test
