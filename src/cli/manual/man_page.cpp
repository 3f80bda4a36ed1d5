#include "cli/manual/man_page.h"

#include <fmt/format.h>

#include <sstream>

#include "sluice/version.h"

namespace sluice::impl::cli {
namespace {

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\')
      result += "\\(rs";
    else if (c == '-')
      result += "\\-";
    else
      result += c;
  }
  // A line that begins so would be a request.
  if (result.starts_with('.') || result.starts_with('\'')) result.insert(0, "\\&");
  return result;
}

// Paragraphs, and examples where lines are indented.
std::string prose(const std::string& text) {
  std::string result;
  std::istringstream lines(text);
  bool example = false;
  for (std::string line; std::getline(lines, line);) {
    const bool indented = line.starts_with("  ");
    if (indented != example) result += indented ? ".PP\n.EX\n" : ".EE\n";
    example = indented;
    if (line.empty())
      result += ".PP\n";
    else
      result += escaped(line) + "\n";
  }
  return result + (example ? ".EE\n" : "");
}

std::string option_text(const OptionText& option) {
  std::string names;
  for (const std::string& name : {option.short_name, option.long_name})
    if (!name.empty()) names += (names.empty() ? "" : ", ") + ("\\fB" + escaped(name) + "\\fR");
  const std::string value = option.value.empty() ? "" : "\\fI" + escaped(option.value) + "\\fR";
  std::string text = ".TP\n" + names + (names.empty() || value.empty() ? "" : " ") + value + "\n";
  std::istringstream lines(option.description);
  for (std::string line; std::getline(lines, line);) {
    line.erase(0, line.find_first_not_of(' '));
    if (!line.empty()) text += escaped(line) + "\n";
  }
  if (option.choices.empty()) return text;
  if (!text.ends_with(".\n")) text.insert(text.size() - 1, ".");
  return text + escaped(fmt::format("One of {}.", fmt::join(option.choices, ", "))) + "\n";
}

// One empty line at most between two paragraphs: man(7) warns about more.
std::string without_empty_paragraphs(std::string text) {
  for (const char* pair : {".PP\n.PP\n", ".PP\n.EE\n.PP\n"})
    for (size_t at; (at = text.find(pair)) != std::string::npos;) text.erase(at, 4);
  return text;
}

}  // namespace

std::string man_page(const std::string& description, const std::vector<CommandText>& commands) {
  std::string text = fmt::format(
      ".TH SLUICE 1 \"\" \"sluice {}\" \"User Commands\"\n"
      ".SH NAME\n"
      "sluice \\- runs transformer language models and does only the work the input needs\n"
      ".SH SYNOPSIS\n"
      "\\fBsluice\\fR \\fICOMMAND\\fR [\\fIOPTION\\fR]...\n"
      ".SH DESCRIPTION\n",
      version());
  text += prose(description) + ".SH COMMANDS\n";
  for (const CommandText& command : commands) {
    text += fmt::format(".SS sluice {}\n", command.name) + prose(command.description);
    for (const OptionText& option : command.options) text += option_text(option);
  }
  text +=
      ".SH EXIT STATUS\n"
      ".TP\n0\nDone.\n"
      ".TP\n1\nThe input or the machine refuses. One line on standard error says what and why.\n"
      ".TP\n2\nWrong usage.\n";
  return without_empty_paragraphs(std::move(text));
}

}  // namespace sluice::impl::cli
