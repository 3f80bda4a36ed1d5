// Causality of whole models: changing the tokens after t changes no bit of the logits up to t.

#include "parity/compare.h"
#include "unit/model/golden_models.h"

namespace sluice::impl::test {
namespace {

class CausalModel : public testing::TestWithParam<std::tuple<std::string, ModelSetup>> {};

TEST_P(CausalModel, LaterTokensDoNotChangeEarlierLogits) {
  const auto& [name, setup] = GetParam();
  const GoldenModel golden = golden_model(name);
  Model model = load(golden, setup);
  const auto run = [&](const std::vector<int32_t>& tokens) {
    KvCache cache = model.make_cache();
    return logits_of(model, tokens, cache);
  };
  const auto before = run(golden.prompt);
  for (const size_t n_kept : {size_t{1}, golden.prompt.size() / 2, golden.prompt.size() - 1}) {
    auto tokens = golden.prompt;
    for (size_t i = n_kept; i < tokens.size(); ++i)
      tokens[i] =
          static_cast<int32_t>((tokens[i] + 1 + static_cast<int32_t>(i)) % model.spec().vocab);
    ASSERT_NE(tokens, golden.prompt);
    const auto after = run(tokens);
    const auto end = static_cast<int64_t>(n_kept) * model.spec().vocab;
    EXPECT_SAME_BITS(std::vector<float>(after.begin(), after.begin() + end),
                     std::vector<float>(before.begin(), before.begin() + end))
        << n_kept << " tokens kept";
    // And the rest is not deaf to the change.
    EXPECT_NE(std::vector<float>(after.begin() + end, after.end()),
              std::vector<float>(before.begin() + end, before.end()));
  }
}

INSTANTIATE_TEST_SUITE_P(All, CausalModel,
                         testing::Combine(testing::ValuesIn(causal_models()),
                                          testing::ValuesIn(kModelSetups)),
                         [](const auto& test) {
                           return test_name_of(std::get<0>(test.param), std::get<1>(test.param));
                         });

}  // namespace
}  // namespace sluice::impl::test
