#include <fmt/format.h>

#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "cli/command_line.h"
#include "cli/error_text.h"
#include "cli/help/help_format.h"
#include "cli/help/usage_text.h"

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

int run(int argc, char** argv) {
  const std::string_view word = argc > 1 ? argv[1] : "";
  if (argc == 2 && (word == "--version" || word == "-V")) {
    fmt::print("{}\n", version_line());
    return 0;
  }
  CommandLine line;
  CLI::App& app = line.app;
  add_commands(line, word);

  ::signal(SIGPIPE, SIG_DFL);

  if (argc <= 1) {
    fmt::print("{}", help_text(app));
    return exit_code(ErrorKind::usage);
  }
  check_command_names(app, {argv + 1, argv + argc});
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const CLI::App* chosen = &app;
    while (!chosen->get_subcommands().empty()) chosen = chosen->get_subcommands().front();
    fmt::print("{}", help_text(*chosen));
    return 0;
  } catch (const CLI::CallForVersion& call) {
    fmt::print("{}\n", call.what());
    return 0;
  } catch (const CLI::ParseError& error) {
    throw Error(ErrorKind::usage, usage_text(app, error));
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
