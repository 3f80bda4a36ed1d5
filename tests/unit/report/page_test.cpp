// The page around the data: nothing in the data can leave its element, and all of it is there.

#include <gtest/gtest.h>

#include "report/page_parts.h"
#include "report/page_text.h"
#include "report/report.h"
#include "sluice/version.h"
#include "unit/report/sample_results.h"
#include "unit/test_files.h"

namespace sluice::impl {
namespace {

using Json = nlohmann::json;

std::string replaced(std::string text, const std::string& mark, std::string_view by) {
  return text.replace(text.find(mark), mark.size(), by);
}

const std::string kDataBegins = "<script type=\"application/json\" id=\"data\">";

// What the browser takes for the data: the element's text, up to the first end tag.
std::string data_of(const std::string& page) {
  const size_t begin = page.find(kDataBegins) + kDataBegins.size();
  return page.substr(begin, page.find("</script", begin) - begin);
}

TEST(ReportPage, HoldsTemplateStyleScriptAndData) {
  const std::string page = report_page({test::sample_eval()}, "sluice report a.json");
  const std::string data = data_of(page);
  std::string expected(kPageHtml);
  expected = replaced(expected, "<!--STYLE-->", "<style>\n" + std::string(kPageStyle) + "</style>");
  expected =
      replaced(expected, "<!--SCRIPT-->", "<script>\n" + std::string(kPageScript) + "</script>");
  expected = replaced(expected, "<!--DATA-->", kDataBegins + data + "</script>");
  EXPECT_EQ(page, expected);
  const Json json = Json::parse(data);
  EXPECT_EQ(json["program"]["version"], SLUICE_VERSION);
  EXPECT_EQ(json["command_line"], "sluice report a.json");
  EXPECT_EQ(json["parts"], Json::array({test::sample_eval()}));
}

TEST(ReportPage, AssetsDoNotEndTheirOwnElements) {
  EXPECT_EQ(kPageScript.find("</script"), kPageScript.npos);
  EXPECT_EQ(kPageScript.find("<!--"), kPageScript.npos);
  EXPECT_EQ(kPageStyle.find("</style"), kPageStyle.npos);
}

TEST(ReportPage, PartsOfADemoStandInOrderAmongOtherResults) {
  const std::string page = report_page({test::sample_bench(), test::sample_demo()}, "");
  const Json data = Json::parse(data_of(page));
  std::vector<std::string> commands;
  for (const Json& part : data["parts"]) commands.push_back(part["command"]);
  EXPECT_EQ(commands,
            (std::vector<std::string>{"bench", "analyze", "eval", "generate", "bench", "tune"}));
}

TEST(ReportPage, MapsArePackedAndTheRestIsUntouched) {
  const Json given = test::sample_analyze_1();
  Json part = Json::parse(data_of(report_page({given}, "")))["parts"][0];
  EXPECT_EQ(part["map"]["owner_bytes"], 2);
  EXPECT_EQ(part["map"]["tokens"], given["map"]["tokens"]);
  EXPECT_EQ(part["map"]["layer_numbers"], Json::array({0, 1}));
  EXPECT_FALSE(part["map"].contains("layers"));
  part["map"] = given["map"];
  EXPECT_EQ(part, given);
}

TEST(ReportPage, HostileTextStaysInsideTheData) {
  Json json = test::sample_generate();
  const std::string hostile =
      "</script><script>alert(1)</script><!-- <!--DATA--> ]]> & \" ' \\ \xe2\x80\xa8\xe2\x80\xa9 "
      "\xe2\x80\xae \xf0\x9f\x98\x80 \x01\x7f \xc2\x85";
  json["runs"][0]["text"] = hostile + std::string(1, '\0') + "\r\n";
  json["model"]["path"] = hostile;
  const std::string text = data_of(report_page({json}, "sluice report '" + hostile + "'"));
  EXPECT_EQ(text.find('<'), text.npos);
  EXPECT_EQ(text.find("\xe2\x80\xa8"), text.npos);
  EXPECT_EQ(text.find("\xe2\x80\xa9"), text.npos);
  for (const char c : text) EXPECT_GE(static_cast<unsigned char>(c), 0x20);
  const Json data = Json::parse(text);
  EXPECT_EQ(data["parts"][0], page_parts(json).at(0));
  EXPECT_EQ(data["command_line"], "sluice report '" + hostile + "'");
}

TEST(ReportPage, PartsOfSeveralFilesNameTheirs) {
  const auto files = [](const std::vector<Json>& results, const std::vector<std::string>& names) {
    std::vector<Json> found;
    const Json data = Json::parse(data_of(report_page(results, "", names)));
    for (const Json& part : data["parts"]) found.push_back(part.value("file", Json()));
    return found;
  };
  const Json bench = test::sample_bench(), eval = test::sample_eval();
  EXPECT_EQ(files({bench, eval}, {"a.json", "b.json"}), (std::vector<Json>{"a.json", "b.json"}));
  EXPECT_EQ(files({bench}, {"a.json"}), std::vector<Json>{nullptr});
  EXPECT_EQ(files({bench, eval}, {}), (std::vector<Json>{nullptr, nullptr}));
}

TEST(ReportPage, BytesThatAreNotUtf8AreReplaced) {
  Json json = test::sample_generate();
  json["model"]["path"] = "a\xff";
  const Json data = Json::parse(data_of(report_page({json}, "b\xfe")));
  EXPECT_EQ(data["parts"][0]["model"]["path"], "a\xef\xbf\xbd");
  EXPECT_EQ(data["command_line"], "b\xef\xbf\xbd");
}

TEST(ReportPage, IsWrittenWholeOrNotAtAll) {
  const test::TempDir folder;
  const auto path = folder.path() / "page.html";
  write_page(test::sample_bench(), path, "sluice bench");
  EXPECT_EQ(test::read_bytes(path), report_page({test::sample_bench()}, "sluice bench"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "page.html.part"));

  test::expect_error(
      [&] { write_page(test::sample_bench(), folder.path() / "none" / "page.html", ""); },
      {"page.html: cannot be written"});
  Json damaged = test::sample_bench();
  damaged["cases"] = 1;
  test::expect_error([&] { write_page(damaged, folder.path() / "other.html", ""); },
                     {"cases: expected an array, found 1"});
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "other.html"));
}

}  // namespace
}  // namespace sluice::impl
