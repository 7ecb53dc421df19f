#include "cli/checks.h"
#include "cli/command_line.h"
#include "cli/help_format.h"

namespace kinora::cli {

void add_commands(CommandLine& line) {
  CLI::App& app = line.app;
  app.name("kinora");
  app.description("Answers questions about long and live video");
  app.formatter(help_formatter());  // commands take over what is set before they are added
  app.set_help_flag("-h,--help", "Print this help");
  app.set_version_flag("-V,--version", version_line(), "Print the version");
  app.require_subcommand(1);
  add_ask(line);
  add_bench(line);
  add_chat(line);
  add_completion(line);
  add_eval(line);
  add_info(line);
  add_frames(line);
  add_help(line);
  add_inspect(line);
  add_models(line);
  add_probe(line);
#ifdef KINORA_HAS_PULL
  add_pull(line);
#endif
  add_tune(line);
  add_version(line);
  check_numbers(app);
  app.footer(
      "Examples:\n"
      "  kinora ask demo \"What happens in this video?\"\n"
#ifdef KINORA_HAS_PULL
      "  kinora pull Qwen/Qwen2.5-VL-3B-Instruct\n"
#endif
      "  kinora ask talk.mp4 \"When is the second chart shown?\" -m Qwen/Qwen2.5-VL-3B-Instruct\n"
      "  kinora chat talk.mp4 -m Qwen2.5-VL-3B-Instruct\n"
      "  kinora models\n"
      "  kinora probe talk.mp4\n"
      "  kinora frames talk.mp4 --fps 1 --contact-sheet sheet.png\n\n"
      "'kinora COMMAND --help' explains a command. Exit codes are listed in docs/exit-codes.md.");
}

}  // namespace kinora::cli
