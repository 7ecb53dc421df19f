#include <fmt/format.h>

#include <memory>
#include <string>

#include "cli/checks.h"
#include "cli/command_line.h"
#include "cli/help/completion.h"

namespace kinora::cli {

void add_completion(CommandLine& line) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command =
      line.app.add_subcommand("completion", "Print what lets a shell complete kinora's words");
  command->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->type_name("SHELL")
      ->check(one_of({"bash", "zsh", "fish"}));
  command->footer(
      "Examples:\n"
      "  kinora completion bash > ~/.local/share/bash-completion/completions/kinora\n"
      "  kinora completion zsh > ~/.zfunc/_kinora\n"
      "  kinora completion fish > ~/.config/fish/completions/kinora.fish\n\n"
      "Installed packages bring all three along.");
  command->callback([shell, &line] {
    line.action = [shell, &line] {
      fmt::print("{}", *shell == "bash"  ? bash_completion(line.app)
                       : *shell == "zsh" ? zsh_completion(line.app)
                                         : fish_completion(line.app));
      return 0;
    };
  });
}

}  // namespace kinora::cli
