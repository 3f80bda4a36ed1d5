// results.json -> one self-contained HTML page. The page is drawn in the browser from the data
// inside it; here results are checked, packed and put into the page.

#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::impl {

// A results file of one command, or of a demo with its `parts`, checked as below.
nlohmann::json read_results(const std::filesystem::path& path);

// The same from memory; `label` stands for the file in errors.
nlohmann::json parse_results(std::string_view text, const std::string& label);

// Throws Error, one line with `label` and the JSON path, unless these are results that this version
// knows and whatever the page relies on is there and of its type.
void check_results(const nlohmann::json& results, const std::string& label);

// The page of all results, in order; `command_line` is what the page says made it. Not empty.
// `names` are those of their files, or none; where there are several, the page compares the first
// two.
std::string report_page(std::vector<nlohmann::json> results, const std::string& command_line,
                        const std::vector<std::string>& names = {});

// One command's results as a page in a file, which is written whole or not at all.
void write_page(const nlohmann::json& results, const std::filesystem::path& path,
                const std::string& command_line);

}  // namespace sluice::impl
