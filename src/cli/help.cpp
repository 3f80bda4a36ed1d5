// sluice help, as a name among the commands: main() calls print_help() (cli/misspelt.h) for it, but
// for the man page. And what the help of all commands looks like.

#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/manual/man_page.h"
#include "cli/terminal/print.h"

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
  CLI::App* command = program.add_subcommand("help",
                                             "What a command does, and its options.\n"
                                             "\n"
                                             "  sluice help\n"
                                             "  sluice help generate\n"
                                             "  sluice help --man | man -l -");
  auto man = std::make_shared<bool>(false);
  command->add_flag("--man", *man, "All of it as a man page")->required();
  return [&program, man](const std::string&) {
    print("{}", man_page(program.get_description(), describe_commands(program)));
  };
}

}  // namespace sluice::impl::cli
