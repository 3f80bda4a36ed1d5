#include "cli/manual/describe.h"

#include <algorithm>

namespace sluice::impl::cli {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// CLI11 writes the type and, behind colons, what is checked: "TEXT:{cpu,cuda}".
void describe_value(const std::string& type, OptionText& text) {
  const size_t open = type.find('{'), close = type.find('}');
  text.value = type.substr(0, type.find(':'));
  if (open != std::string::npos && close != std::string::npos && open < close)
    text.choices = split(type.substr(open + 1, close - open - 1), ',');
}

OptionText describe_option(const CLI::Option& option) {
  OptionText text;
  text.description = option.get_description();
  if (!option.get_snames().empty()) text.short_name = "-" + option.get_snames().front();
  if (!option.get_lnames().empty()) text.long_name = "--" + option.get_lnames().front();
  if (option.get_items_expected_max() > 0) describe_value(option.get_type_name(), text);
  return text;
}

// Up to the first full stop that ends a word, on one line.
std::string first_sentence(std::string text) {
  text = text.substr(0, text.find("\n\n"));
  std::replace(text.begin(), text.end(), '\n', ' ');
  const size_t end = text.find(". ");
  text = text.substr(0, end);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

}  // namespace

std::vector<CommandText> describe_commands(const CLI::App& program) {
  std::vector<CommandText> commands;
  for (const CLI::App* command : program.get_subcommands({})) {
    CommandText text{.name = command->get_name(),
                     .summary = first_sentence(command->get_description()),
                     .description = command->get_description(),
                     .options = {}};
    for (const CLI::Option* option : command->get_options())
      if (!option->get_group().empty()) text.options.push_back(describe_option(*option));
    commands.push_back(std::move(text));
  }
  return commands;
}

}  // namespace sluice::impl::cli
