// What a fuzzer does with one results.json, shared by fuzz_report and its mutation test.

#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "fuzz/harness.h"
#include "report/report.h"
#include "unit/test_files.h"

namespace sluice::impl::fuzz {

// How often a page has characters that the data in it must not have raw.
inline std::array<size_t, 3> count_raw(std::string_view page) {
  constexpr std::array<std::string_view, 3> kWords = {"<", "\xe2\x80\xa8", "\xe2\x80\xa9"};
  std::array<size_t, 3> counts{};
  for (size_t i = 0; i < kWords.size(); ++i)
    for (size_t at = 0; (at = page.find(kWords[i], at)) != page.npos; ++at) ++counts[i];
  return counts;
}

// Reads it and makes a page of it, which has the elements of the template and no more.
inline void feed_report(const test::TempDir& folder, std::string_view json) {
  static const auto of_template = count_raw(
      report_page({{{"schema", 1}, {"command", "bench"}, {"cases", nlohmann::json::array()}}},
                  "sluice report"));
  folder.write("results.json", json);
  expect_only_errors([&] {
    const std::string page =
        report_page({read_results(folder.path() / "results.json")}, "sluice report");
    if (count_raw(page) != of_template)
      throw std::logic_error("the data of a page could be taken for markup");
  });
}

}  // namespace sluice::impl::fuzz
