#include <algorithm>
#include <iterator>
#include <string_view>

#include "cli/checks.h"
#include "cli/command_line.h"
#include "cli/help/help_format.h"

namespace kinora::cli {
namespace {

struct Command {
  std::string_view name;
  void (*add)(CommandLine& line);
  bool needs_all = false;  // it tells of the others
};
constexpr Command commands[] = {
    {"ask", add_ask},
    {"bench", add_bench},
    {"calibrate", add_calibrate},
    {"chat", add_chat},
    {"completion", add_completion, true},
    {"eval", add_eval},
    {"frames", add_frames},
    {"help", add_help, true},
    {"index", add_index},
    {"info", add_info},
    {"inspect", add_inspect},
#ifdef KINORA_HAS_CATALOGUE
    {"library", add_library},
#endif
    {"models", add_models},
    {"probe", add_probe},
#ifdef KINORA_HAS_PULL
    {"pull", add_pull},
#endif
    {"quantize", add_quantize},
#ifdef KINORA_HAS_SERVER
    {"serve", add_serve},
#endif
    {"tokenize", add_tokenize},
    {"tune", add_tune},
    {"version", add_version},
    {"watch", add_watch},
};

}  // namespace

void add_commands(CommandLine& line, std::string_view word) {
  CLI::App& app = line.app;
  app.name("kinora");
  app.description("Answers questions about long and live video");
  app.formatter(help_formatter());  // commands take over what is set before they are added
  app.set_help_flag("-h,--help", "Print this help");
  app.set_version_flag("-V,--version", version_line(), "Print the version");
  app.require_subcommand(1);
  const bool alone = std::any_of(std::begin(commands), std::end(commands),
                                 [&](const Command& c) { return c.name == word && !c.needs_all; });
  for (const Command& command : commands) {
    if (!alone || command.name == word) command.add(line);
  }
  check_numbers(app);
  app.footer(
      "Examples:\n"
      "  kinora ask demo \"What happens in this video?\"\n"
#ifdef KINORA_HAS_PULL
      "  kinora pull Qwen/Qwen2.5-VL-3B-Instruct\n"
#endif
      "  kinora ask talk.mp4 \"When is the second chart shown?\" -m Qwen/Qwen2.5-VL-3B-Instruct\n"
      "  kinora chat talk.mp4 -m Qwen2.5-VL-3B-Instruct\n"
#ifdef KINORA_HAS_SERVER
      "  kinora serve -m Qwen2.5-VL-3B-Instruct\n"
#endif
      "  kinora models\n"
      "  kinora probe talk.mp4\n"
      "  kinora frames talk.mp4 --fps 1 --contact-sheet sheet.png\n\n"
      "'kinora COMMAND --help' explains a command. Exit codes are listed in docs/exit-codes.md.");
}

}  // namespace kinora::cli
