#include "cli/help/usage_text.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/policy/names.h"
#include "cli/help/help_format.h"

namespace kinora::cli {
namespace {

std::vector<std::string> names_of(const std::vector<const CLI::App*>& commands) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands) names.push_back(command->get_name());
  return names;
}

std::string unknown_flag(const CLI::App& command, const std::string& argument) {
  const std::string given = argument.substr(0, argument.find('='));
  std::vector<std::string> known;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    for (const std::string& name : option->get_snames()) known.push_back("-" + name);
  }
  const std::string_view meant = given.starts_with("--") ? nearest_name(given, known) : "";
  return fmt::format("{} has no flag {}{}", full_name(command), in_quotes(given),
                     meant.empty() ? "" : fmt::format("; did you mean {}?", meant));
}

// The command that was chosen, below all others.
const CLI::App& chosen_below(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : chosen_below(*chosen.front());
}

std::string with_help(const std::string& problem, const CLI::App& command) {
  return fmt::format("{} (see '{} --help')", problem, full_name(command));
}

}  // namespace

void check_command_names(const CLI::App& app, const std::vector<std::string>& arguments) {
  const CLI::App* command = &app;
  for (const std::string& argument : arguments) {
    const std::vector<const CLI::App*> below = subcommands_of(*command);
    if (below.empty()) return;
    if (argument.starts_with("-")) {
      if (command->get_option_no_throw(argument.substr(0, argument.find('='))) != nullptr) return;
      throw Error(ErrorKind::usage, with_help(unknown_flag(*command, argument), *command));
    }
    const CLI::App* next = nullptr;
    for (const CLI::App* sub : below) {
      if (sub->get_name() == argument) next = sub;
    }
    if (next == nullptr) {
      throw Error(ErrorKind::usage, with_help(fmt::format("{} has no command {}; {}",
                                                          full_name(*command), in_quotes(argument),
                                                          suggest_name(argument, names_of(below))),
                                              *command));
    }
    command = next;
  }
  const std::vector<const CLI::App*> below = subcommands_of(*command);
  if (below.empty()) return;
  throw Error(ErrorKind::usage, with_help(fmt::format("{} needs a command: {}", full_name(*command),
                                                      list_names(names_of(below), "or")),
                                          *command));
}

std::string usage_text(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = chosen_below(app);
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError)) {
    const std::vector<std::string> extra = app.remaining(true);
    for (const std::string& argument : extra) {
      if (argument.size() > 1 && argument[0] == '-') {
        return with_help(unknown_flag(command, argument), command);
      }
    }
    if (!extra.empty()) {
      return with_help(fmt::format("{} is one word too many", in_quotes(extra.front())), command);
    }
  }
  return with_help(error.what(), command);
}

}  // namespace kinora::cli
