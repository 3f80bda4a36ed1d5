// The page: template, style and script with the data of all results between them.

#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "io/write_file.h"
#include "report/needle_cells.h"
#include "report/page_parts.h"
#include "report/page_text.h"
#include "report/report.h"
#include "report/spectrum.h"
#include "report/token_map.h"
#include "sluice/version.h"

namespace sluice::impl {
namespace {

using Json = nlohmann::json;

// JSON that can stand inside <script>: nothing in it can end the element or begin a comment, and no
// character in it is a line end to old scripts. All of these occur inside strings only.
std::string script_json(const Json& data) {
  // Paths may hold bytes that are not UTF-8.
  const std::string plain = data.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string out;
  out.reserve(plain.size() + plain.size() / 16);
  for (size_t i = 0; i < plain.size(); ++i) {
    const std::string_view rest = std::string_view(plain).substr(i, 3);
    if (rest[0] == '<') {
      out += "\\u003c";
    } else if (rest == "\xe2\x80\xa8" || rest == "\xe2\x80\xa9") {
      out += rest[2] == '\xa8' ? "\\u2028" : "\\u2029";
      i += 2;
    } else {
      out += rest[0];
    }
  }
  return out;
}

// The template up to `mark`, which is taken off its front with everything before it.
std::string_view take_until(std::string_view& html, std::string_view mark) {
  const size_t at = html.find(mark);
  SLUICE_CHECK(at != html.npos && html.find(mark, at + 1) == html.npos);
  const std::string_view before = html.substr(0, at);
  html.remove_prefix(at + mark.size());
  return before;
}

void append_part(Json& parts, Json part) {
  if (const auto map = part.find("map"); map != part.end() && !map->is_null())
    *map = pack_map(*map);
  if (const auto groups = part.find("groups");
      groups != part.end() && part["command"] == "calibrate")
    thin_spectra(*groups);
  if (part["command"] == "needle") count_needles(part);
  parts.push_back(std::move(part));
}

void append_parts(Json& parts, Json results) {
  for (Json& part : page_parts(std::move(results))) append_part(parts, std::move(part));
}

}  // namespace

std::string report_page(std::vector<Json> results, const std::string& command_line,
                        const std::vector<std::string>& names) {
  SLUICE_CHECK(!results.empty() && (names.empty() || names.size() == results.size()));
  Json parts = Json::array();
  for (size_t i = 0; i < results.size(); ++i) {
    Json& each = results[i];
    check_results(each, "results");
    const size_t first = parts.size();
    if (const auto inner = each.find("parts"); inner != each.end())
      for (Json& part : *inner) append_parts(parts, std::move(part));
    else
      append_parts(parts, std::move(each));
    if (names.size() > 1)
      for (size_t part = first; part < parts.size(); ++part) parts[part]["file"] = names[i];
  }
  const std::string data = script_json({{"program", {{"version", SLUICE_VERSION}}},
                                        {"command_line", command_line},
                                        {"parts", std::move(parts)}});
  std::string_view html = kPageHtml;
  std::string page(take_until(html, "<!--STYLE-->"));
  page.append("<style>\n").append(kPageStyle).append("</style>");
  page += take_until(html, "<!--DATA-->");
  page.append("<script type=\"application/json\" id=\"data\">").append(data).append("</script>");
  page += take_until(html, "<!--SCRIPT-->");
  page.append("<script>\n").append(kPageScript).append("</script>");
  page += html;
  return page;
}

void write_page(const Json& results, const std::filesystem::path& path,
                const std::string& command_line) {
  write_file(path, report_page(std::vector<Json>{results}, command_line));
}

}  // namespace sluice::impl
