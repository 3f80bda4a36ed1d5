// sluice help, as a name among the commands: main() calls print_help() (cli/misspelt.h) for it. And
// what the help of all commands looks like.

#include "cli/commands.h"

namespace sluice::impl::cli {

void leave_ranges_out(CLI::App& program) {
  for (CLI::App* command : program.get_subcommands({}))
    for (CLI::Option* option : command->get_options()) try {
        for (int i = 0;; ++i) {
          CLI::Validator* validator = option->get_validator(i);
          if (validator->get_description().find(" in [") != std::string::npos)
            validator->description("");
        }
      } catch (const CLI::OptionNotFound&) {  // that was the last
      }
}

Run add_help(CLI::App& program) {
  program.add_subcommand("help",
                         "What a command does, and its options.\n"
                         "\n"
                         "  sluice help\n"
                         "  sluice help generate");
  return [](const std::string&) {};
}

}  // namespace sluice::impl::cli
