#include <fmt/format.h>

#include "cli/command_line.h"

namespace kinora::cli {

std::string version_line() { return fmt::format("kinora {}", KINORA_VERSION); }

void add_version(CommandLine& line) {
  CLI::App* command = line.app.add_subcommand("version", "Print the version of kinora");
  command->footer(
      "Examples:\n"
      "  kinora version\n"
      "  kinora -V");
  command->callback([&line] {
    line.action = [] {
      fmt::print("{}\n", version_line());
      return 0;
    };
  });
}

}  // namespace kinora::cli
