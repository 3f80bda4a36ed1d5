// sluice completion: scripts for shells.

#include "cli/manual/completion.h"

#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/terminal/print.h"

namespace sluice::impl::cli {

Run add_completion(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "completion",
      "Completion of commands, options and their values in a shell. Prints a script.\n"
      "\n"
      "  source <(sluice completion bash)\n"
      "  source <(sluice completion zsh)\n"
      "  sluice completion fish | source\n"
      "\n"
      "An installed sluice has them where the shells look.");
  auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  return [shell, &program](const std::string&) {
    const std::vector<CommandText> commands = describe_commands(program);
    print("{}", *shell == "bash"  ? bash_completion(commands)
                : *shell == "zsh" ? zsh_completion(commands)
                                  : fish_completion(commands));
  };
}

}  // namespace sluice::impl::cli
