// Every golden checkpoint on every backend against logits that Hugging Face transformers made.

#include <gtest/gtest.h>

#include "golden/golden_case.h"
#include "unit/model/golden_models.h"

namespace sluice::impl {
namespace {

using Parameter = std::tuple<std::string, test::ModelSetup>;
class GoldenModel : public testing::TestWithParam<Parameter> {};

TEST_P(GoldenModel, AgreesWithHuggingFace) {
  const auto& [name, setup] = GetParam();
  test::expect_golden(name, setup.dtype, [&made = setup] { return made.make(); });
}

std::string test_name(const testing::TestParamInfo<Parameter>& info) {
  const auto& [name, setup] = info.param;
  return test::test_name_of(name, setup);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenModel,
                         testing::Combine(testing::ValuesIn(test::all_models()),
                                          testing::ValuesIn(test::kModelSetups)),
                         test_name);

}  // namespace
}  // namespace sluice::impl
