#include "cli/misspelt.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/terminal/nearest.h"
#include "cli/terminal/print.h"
#include "core/quote.h"

namespace sluice::impl::cli {
namespace {

std::string hint_of(const std::string& nearest, const std::string& list) {
  return (nearest.empty() ? "" : "did you mean " + nearest + "? ") + list + " lists them";
}

// "--name" of every option that has one.
std::vector<std::string> long_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

Misspelt no_such_command(const CLI::App& program, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* command : program.get_subcommands({})) names.push_back(command->get_name());
  return {.message = "there is no command " + quote(word),
          .hint = hint_of(nearest_name(word, names), "sluice --help")};
}

const CLI::App* find_command(const CLI::App& program, const std::string& name) {
  for (const CLI::App* command : program.get_subcommands({}))
    if (command->get_name() == name) return command;
  return nullptr;
}

}  // namespace

Misspelt print_help(const CLI::App& program, const std::string& name) {
  const CLI::App* command = find_command(program, name);
  if (!name.empty() && command == nullptr) return no_such_command(program, name);
  print("{}", name.empty() ? program.help() : command->help(program.get_name()));
  return {};
}

Misspelt misspelt(const CLI::App& program, const std::vector<std::string>& words) {
  if (words.empty() || words.front().starts_with('-')) return {};
  const std::string& name = words.front();
  const auto commands = program.get_subcommands({});
  const auto command = std::find_if(commands.begin(), commands.end(),
                                    [&](const CLI::App* each) { return each->get_name() == name; });
  if (command == commands.end()) return no_such_command(program, name);
  const std::vector<std::string> names = long_names(**command);
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string option = words[i].substr(0, words[i].find('='));
    if (!option.starts_with("--") || option.size() < 3) continue;
    if (std::find(names.begin(), names.end(), option) != names.end()) continue;
    return {.message = name + " has no option " + quote(option),
            .hint = hint_of(nearest_name(option, names), "sluice " + name + " --help")};
  }
  return {};
}

}  // namespace sluice::impl::cli
