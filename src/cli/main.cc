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
#include "base/system/freed_memory.h"
#include "cli/command_line.h"
#include "cli/error_text.h"
#include "cli/help/help_format.h"
#include "cli/help/usage_text.h"
#include "cli/terminal/output.h"

namespace kinora::cli {
namespace {

int fail(const std::string& message, ErrorKind kind) {
  complain(message);
  return exit_code(kind);
}

// A script that asked for JSON finds the error there too.
int fail_for(int argc, char** argv, const std::string& message, ErrorKind kind) {
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) != "--json") continue;
    const nlohmann::json error = {{"kind", error_kind_name(kind)}, {"message", message}};
    const std::string text = json_text(nlohmann::json{{"error", error}}) + "\n";
    std::fwrite(text.data(), 1, text.size(), stdout);  // where that fails, the line below tells
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

int run_and_tell(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    return fail_for(argc, argv, error_text(error), error.kind());
  } catch (const std::bad_alloc&) {
    return fail_for(argc, argv, "out of memory", ErrorKind::resource);
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) != 0) {
      return fail("cannot write to standard output: " + error.code().message(),
                  ErrorKind::resource);
    }
    const bool scarce = error.code() == std::errc::resource_unavailable_try_again ||
                        error.code() == std::errc::not_enough_memory;
    return fail_for(
        argc, argv,
        std::string(scarce ? "the system refuses: " : "internal error: ") + error.what(),
        scarce ? ErrorKind::resource : ErrorKind::internal);
  } catch (const std::exception& error) {
    return fail_for(argc, argv, std::string("internal error: ") + error.what(),
                    ErrorKind::internal);
  }
}

}  // namespace
}  // namespace kinora::cli

int main(int argc, char** argv) {
  using namespace kinora;
  ::signal(SIGPIPE, SIG_DFL);
  give_back_large_blocks();
  cli::guard_standard_descriptors();
  return cli::finish_output(cli::run_and_tell(argc, argv));
}
