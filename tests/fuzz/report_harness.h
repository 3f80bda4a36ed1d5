// What a fuzzer does with one results.json, shared by fuzz_report and its mutation test.

#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "fuzz/harness.h"
#include "report/report.h"
#include "unit/test_files.h"

namespace sluice::fuzz {

// Reads it and makes a page of it, which whatever the file holds has the script elements of the
// template and no more.
inline void feed_report(const test::TempDir& folder, std::string_view json) {
  const auto count = [](const std::string& text, std::string_view word) {
    size_t n = 0;
    for (size_t at = 0; (at = text.find(word, at)) != text.npos; at += word.size()) ++n;
    return n;
  };
  static const std::string plain =
      report_page({{{"schema", 1}, {"command", "none"}}}, "sluice report");
  folder.write("results.json", json);
  expect_only_errors([&] {
    const std::string page =
        report_page({read_results(folder.path() / "results.json")}, "sluice report");
    for (const char* word : {"<", "\xe2\x80\xa8", "\xe2\x80\xa9"})
      if (count(page, word) != count(plain, word))
        throw std::logic_error("the data of a page has a raw " + std::string(word));
  });
}

}  // namespace sluice::fuzz
