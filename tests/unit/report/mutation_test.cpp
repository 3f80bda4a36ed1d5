// Results with one or two values replaced by something odd, from a fixed seed: each must become a
// page or end in one line. Byte-level searches are fuzz_report's.

#include <gtest/gtest.h>

#include <random>

#include "fuzz/report_harness.h"
#include "paths.h"
#include "unit/json_mutation.h"
#include "unit/report/sample_results.h"

namespace sluice::impl {
namespace {

using Json = nlohmann::json;

const std::vector<Json> kOddValues = {nullptr,
                                      true,
                                      -1,
                                      0,
                                      1,
                                      4,
                                      int64_t{1} << 40,
                                      UINT64_MAX,
                                      1e308,
                                      -0.5,
                                      "",
                                      "ER..",
                                      "analyze",
                                      "</script><script>",
                                      "\xe2\x80\xa8<!--",
                                      Json::array(),
                                      Json::object(),
                                      Json::array({1, "a"}),
                                      test::sample_bench()};

TEST(ReportMutations, EndInOneLineOrAPage) {
  const test::TempDir folder;
  std::mt19937 random(4);
  for (const Json& original :
       {test::sample_analyze(), test::sample_eval(), test::sample_generate(), test::sample_bench(),
        test::sample_calibrate(), test::sample_tune(), test::sample_needle(), test::sample_demo(),
        test::sample_analyze_1(), test::sample_generate_1()}) {
    for (int i = 0; i < 100; ++i) {
      Json json = original;
      for (uint32_t n = 1 + random() % 2; n > 0; --n) test::mutate(json, random, kOddValues, 8);
      const std::string text = json.dump();
      EXPECT_NO_THROW(fuzz::feed_report(folder, text)) << text;
    }
  }
}

TEST(ReportMutations, CommittedInputsEndInOneLineOrAPage) {
  const test::TempDir folder;
  int count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(test::fuzz_corpus_dir() / "report")) {
    EXPECT_NO_THROW(fuzz::feed_report(folder, test::read_bytes(entry.path()))) << entry.path();
    ++count;
  }
  EXPECT_GT(count, 0);
}

}  // namespace
}  // namespace sluice::impl
