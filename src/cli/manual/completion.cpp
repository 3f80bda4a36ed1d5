#include "cli/manual/completion.h"

#include <fmt/format.h>

namespace sluice::impl::cli {
namespace {

std::string one_line(std::string text) {
  text = text.substr(0, text.find('\n'));
  while (text.ends_with('.') || text.ends_with(' ')) text.pop_back();
  return text;
}

// Puts a backslash before each of these characters.
std::string escaped(const std::string& text, const std::string& special) {
  std::string result;
  for (const char c : text) {
    if (special.find(c) != std::string::npos) result += '\\';
    result += c;
  }
  return result;
}

// Inside single quotes of bash and zsh: the quote is closed, written and opened again.
std::string in_quotes(const std::string& text) {
  std::string result;
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result;
}

std::vector<std::string> names_of(const std::vector<CommandText>& commands) {
  std::vector<std::string> names;
  for (const CommandText& command : commands) names.push_back(command.name);
  return names;
}

std::vector<std::string> names_of(const OptionText& option) {
  std::vector<std::string> names;
  for (const std::string& name : {option.short_name, option.long_name})
    if (!name.empty()) names.push_back(name);
  return names;
}

// What `sluice help` and an argument without a name may be.
std::vector<std::string> arguments_of(const CommandText& command,
                                      const std::vector<CommandText>& commands) {
  if (command.name == "help") return names_of(commands);
  for (const OptionText& option : command.options)
    if (names_of(option).empty()) return option.choices;
  return {};
}

std::string zsh_option(const OptionText& option) {
  const std::string description = in_quotes(escaped(one_line(option.description), "[]:\\"));
  std::string value;
  if (!option.value.empty())
    value = fmt::format(
        ":{}:{}", option.value,
        option.choices.empty() ? "_files" : fmt::format("({})", fmt::join(option.choices, " ")));
  const std::vector<std::string> names = names_of(option);
  if (names.size() == 2)
    return fmt::format("'({0} {1})'{{{0},{1}}}'[{2}]{3}'", names[0], names[1], description, value);
  return fmt::format("'{}[{}]{}'", names[0], description, value);
}

std::string fish_option(const CommandText& command, const OptionText& option) {
  std::string line =
      fmt::format("complete -c sluice -n '__fish_seen_subcommand_from {}'", command.name);
  if (!option.short_name.empty()) line += " -s " + option.short_name.substr(1);
  if (!option.long_name.empty()) line += " -l " + option.long_name.substr(2);
  if (!option.choices.empty())
    line += fmt::format(" -x -a '{}'", fmt::join(option.choices, " "));
  else if (!option.value.empty())
    line += " -r";
  return line + fmt::format(" -d '{}'\n", escaped(one_line(option.description), "'\\"));
}

}  // namespace

std::string bash_completion(const std::vector<CommandText>& commands) {
  std::string values, options;
  for (const CommandText& command : commands) {
    std::vector<std::string> names;
    for (const OptionText& option : command.options) {
      for (const std::string& name : names_of(option)) {
        names.push_back(name);
        if (!option.choices.empty())
          values += fmt::format("    {}:{}) words='{}' ;;\n", command.name, name,
                                fmt::join(option.choices, " "));
      }
    }
    options += fmt::format("      {}) options='{}'; words='{}' ;;\n", command.name,
                           fmt::join(names, " "), fmt::join(arguments_of(command, commands), " "));
  }
  // Where nothing is found bash goes on with the names of files.
  return fmt::format(
      "# bash completion for sluice, written by `sluice completion bash`.\n"
      "_sluice() {{\n"
      "  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}\n"
      "  local command=${{COMP_WORDS[1]}} words='' options=''\n"
      "  COMPREPLY=()\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    COMPREPLY=($(compgen -W '{} --help --version' -- \"$current\"))\n"
      "    return\n"
      "  fi\n"
      "  case $command:$previous in\n"
      "{}"
      "  esac\n"
      "  if [ -z \"$words\" ]; then\n"
      "    case $command in\n"
      "{}"
      "    esac\n"
      "    case $current in -*) words=$options ;; esac\n"
      "  fi\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "}}\n"
      "complete -o default -F _sluice sluice\n",
      fmt::join(names_of(commands), " "), values, options);
}

std::string zsh_completion(const std::vector<CommandText>& commands) {
  std::string summaries, cases;
  for (const CommandText& command : commands) {
    summaries +=
        fmt::format("    '{}:{}'\n", command.name, in_quotes(escaped(command.summary, ":\\")));
    cases += fmt::format("    {})\n      _arguments", command.name);
    for (const OptionText& option : command.options)
      if (!names_of(option).empty()) cases += " \\\n        " + zsh_option(option);
    const std::vector<std::string> arguments = arguments_of(command, commands);
    cases +=
        fmt::format(" \\\n        '*:argument:{}'\n      ;;\n",
                    arguments.empty() ? "_files" : fmt::format("({})", fmt::join(arguments, " ")));
  }
  return fmt::format(
      "#compdef sluice\n"
      "# zsh completion for sluice, written by `sluice completion zsh`.\n"
      "_sluice() {{\n"
      "  local -a commands\n"
      "  commands=(\n"
      "{}"
      "  )\n"
      "  if (( CURRENT == 2 )); then\n"
      "    _describe command commands\n"
      "    return\n"
      "  fi\n"
      "  local command=$words[2]\n"
      "  shift words\n"
      "  (( CURRENT-- ))\n"
      "  case $command in\n"
      "{}"
      "  esac\n"
      "}}\n"
      "if [ \"$funcstack[1]\" = _sluice ]; then _sluice \"$@\"; else compdef _sluice sluice; fi\n",
      summaries, cases);
}

std::string fish_completion(const std::vector<CommandText>& commands) {
  std::string text = "# fish completion for sluice, written by `sluice completion fish`.\n";
  for (const CommandText& command : commands)
    text += fmt::format("complete -c sluice -n __fish_use_subcommand -f -a {} -d '{}'\n",
                        command.name, escaped(command.summary, "'\\"));
  for (const CommandText& command : commands) {
    for (const OptionText& option : command.options)
      if (!names_of(option).empty()) text += fish_option(command, option);
    if (const auto arguments = arguments_of(command, commands); !arguments.empty())
      text += fmt::format("complete -c sluice -n '__fish_seen_subcommand_from {}' -f -a '{}'\n",
                          command.name, fmt::join(arguments, " "));
  }
  return text;
}

}  // namespace sluice::impl::cli
