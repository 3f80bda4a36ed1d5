#include "report/spectrum.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "report/report.h"
#include "unit/report/sample_results.h"

namespace sluice::impl {
namespace {

using Json = nlohmann::json;

TEST(ThinSpectra, ShortOnesAreWhole) {
  Json groups = {{{"layer", 3}, {"spectrum", {0.5, 0.25, 0.125}}}, {{"layer", 4}}};
  thin_spectra(groups);
  EXPECT_EQ(groups, Json::parse(R"([
    {"layer": 3, "energy_curve": [[1, 0.5], [2, 0.75], [3, 0.875]]}, {"layer": 4}])"));
}

TEST(ThinSpectra, LongOnesKeepTheirEndsAndAreShort) {
  constexpr size_t kWide = 16384;
  Json groups = Json::array({{{"spectrum", std::vector<double>(kWide, 1.0 / kWide)}}});
  thin_spectra(groups);
  const Json& curve = groups[0]["energy_curve"];
  EXPECT_LE(curve.size(), 96u);
  EXPECT_EQ(curve.front()[0], 1);
  EXPECT_EQ(curve.back()[0], kWide);
  for (size_t i = 0; i < curve.size(); ++i) {
    // Each is the sum up to its own direction: shares of a power of two add up exactly.
    EXPECT_EQ(curve[i][1].get<double>() * kWide, curve[i][0].get<double>());
    if (i > 0) {
      EXPECT_GT(curve[i][0], curve[i - 1][0]);
    }
  }
}

TEST(ThinSpectra, PagesHaveCurvesAlone) {
  const std::string page = report_page({test::sample_calibrate()}, "");
  EXPECT_NE(page.find("\"energy_curve\":[[1,0.6],"), std::string::npos);
  EXPECT_EQ(page.find("\"spectrum\":"), std::string::npos);
}

}  // namespace
}  // namespace sluice::impl
