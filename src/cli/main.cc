#include <fmt/format.h>

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "cli/command_line.h"
#include "cli/error_text.h"

namespace kinora::cli {
namespace {

int fail(const std::string& message, ErrorKind kind) {
  fmt::print(stderr, "kinora: {}\n", message);
  return exit_code(kind);
}

// A script that asked for JSON finds the error there too.
int fail_for(int argc, char** argv, const std::string& message, ErrorKind kind) {
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) != "--json") continue;
    const nlohmann::json error = {{"kind", error_kind_name(kind)}, {"message", message}};
    constexpr auto replace = nlohmann::json::error_handler_t::replace;  // paths may hold any bytes
    fmt::print("{}\n", nlohmann::json{{"error", error}}.dump(2, ' ', false, replace));
    break;
  }
  return fail(message, kind);
}

struct Command {
  std::string_view name;
  void (*add)(CommandLine& line);
};
constexpr Command commands[] = {
    {"ask", add_ask},       {"bench", add_bench},       {"calibrate", add_calibrate},
    {"chat", add_chat},     {"eval", add_eval},         {"info", add_info},
    {"frames", add_frames}, {"help", add_help},         {"inspect", add_inspect},
    {"probe", add_probe},   {"tokenize", add_tokenize}, {"tune", add_tune}};

// The options of all commands take longer to set up than most commands to begin: where the first
// word names one, only that one is. Help and a word that is none need them all.
void add_commands(CommandLine& line, std::string_view word) {
  const bool alone =
      word != "help" && std::any_of(std::begin(commands), std::end(commands),
                                    [&](const Command& c) { return c.name == word; });
  for (const Command& command : commands) {
    if (!alone || command.name == word) command.add(line);
  }
}

int run(int argc, char** argv) {
  const std::string version = std::string("kinora ") + KINORA_VERSION;
  if (argc == 2 && std::string_view(argv[1]) == "--version") {
    fmt::print("{}\n", version);
    return 0;
  }
  CommandLine line;
  CLI::App& app = line.app;
  app.name("kinora");
  app.description("Answers questions about long and live video.");
  app.footer(
      "Examples:\n"
      "  kinora ask demo \"What happens in this video?\"\n"
      "  kinora ask talk.mp4 \"When is the second chart shown?\" --model DIR\n"
      "  kinora chat talk.mp4 --model DIR\n"
      "  kinora info DIR\n"
      "  kinora probe talk.mp4\n"
      "  kinora frames talk.mp4 --fps 1 --contact-sheet sheet.png\n\n"
      "'kinora COMMAND --help' explains a command. Exit codes are listed in docs/exit-codes.md.");
  app.set_version_flag("--version", version);
  app.require_subcommand(1);
  add_commands(line, argc > 1 ? argv[1] : "");

  ::signal(SIGPIPE, SIG_DFL);

  if (argc <= 1) {
    fmt::print("{}", app.help());
    return exit_code(ErrorKind::usage);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const auto chosen = app.get_subcommands();
    fmt::print("{}", chosen.empty() ? app.help() : chosen.front()->help(app.get_name()));
    return 0;
  } catch (const CLI::CallForVersion& call) {
    fmt::print("{}\n", call.what());
    return 0;
  } catch (const CLI::ParseError& error) {
    const auto chosen = app.get_subcommands();
    const std::string command = chosen.empty() ? "" : " " + chosen.front()->get_name();
    const std::string message = fmt::format("{} (see 'kinora{} --help')", error.what(), command);
    return fail(message, ErrorKind::usage);
  }
  return line.action();
}

}  // namespace
}  // namespace kinora::cli

int main(int argc, char** argv) {
  using namespace kinora;
  try {
    return cli::run(argc, argv);
  } catch (const Error& error) {
    return cli::fail_for(argc, argv, cli::error_text(error), error.kind());
  } catch (const std::bad_alloc&) {
    return cli::fail_for(argc, argv, "out of memory", ErrorKind::resource);
  } catch (const std::system_error& error) {
    const bool scarce = error.code() == std::errc::resource_unavailable_try_again ||
                        error.code() == std::errc::not_enough_memory;
    return cli::fail_for(
        argc, argv,
        std::string(scarce ? "the system refuses: " : "internal error: ") + error.what(),
        scarce ? ErrorKind::resource : ErrorKind::internal);
  } catch (const std::exception& error) {
    return cli::fail_for(argc, argv, std::string("internal error: ") + error.what(),
                         ErrorKind::internal);
  }
}
