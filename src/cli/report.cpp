// sluice report: results files -> one page.

#include "report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/options/options.h"
#include "cli/terminal/print.h"
#include "core/quote.h"
#include "eval/results.h"
#include "io/write_file.h"

namespace sluice::impl::cli {
namespace {

namespace fs = std::filesystem;

struct ReportOptions {
  std::vector<std::string> files;
  std::string output = "report.html";
};

// "analyze, eval": each command once, in order of appearance.
std::string commands_of(const std::vector<nlohmann::json>& results) {
  std::vector<std::string> names;
  const auto add = [&](const nlohmann::json& part) {
    auto name = part["command"].get<std::string>();
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  for (const nlohmann::json& each : results)
    if (const auto parts = each.find("parts"); parts != each.end())
      for (const nlohmann::json& part : *parts) add(part);
    else
      add(each);
  return fmt::format("{}", fmt::join(names, ", "));
}

void run_report(const ReportOptions& options, const std::string& command_line) {
  std::vector<nlohmann::json> results;
  for (const std::string& file : options.files) {
    std::error_code ignored;
    if (fs::equivalent(file, options.output, ignored))
      throw CLI::ValidationError(file + " is read and would be overwritten by --output");
    results.push_back(read_results(file));
  }
  check_output(options.output);
  const std::string shown = commands_of(results);
  const std::string page = report_page(std::move(results), command_line, options.files);
  write_file(options.output, page);
  print("{}: {} KiB, shows {}\n", path_label(options.output), (page.size() + 1023) / 1024,
        quote(shown));
}

}  // namespace

Run add_report(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "report",
      "One HTML page of results that other commands wrote with --json: the text with its\n"
      "representatives at every layer, profiles, quality against work, speed, and every number\n"
      "in tables. The page is one file that asks for nothing else; open it in any browser.\n"
      "\n"
      "  sluice analyze -m MODEL -f text.txt --json profile.json\n"
      "  sluice eval -m MODEL -f text.txt --attention keys --tau 0.3,0.5 --json quality.json\n"
      "  sluice report profile.json quality.json -o report.html\n"
      "\n"
      "Of several files the page compares the first two: what both measured stands next to each\n"
      "other, with what differs by more than its noise.\n"
      "\n"
      "  sluice report before.json after.json");
  auto options = std::make_shared<ReportOptions>();
  command->add_option("files", options->files, "Results files, shown in this order")
      ->required()
      ->type_name("FILE");
  command->add_option("-o,--output", options->output, "The page to write")
      ->type_name("FILE")
      ->capture_default_str();
  return [options](const std::string& command_line) { run_report(*options, command_line); };
}

}  // namespace sluice::impl::cli
