// What is wrong with a command line, in words: an unknown command or flag with the nearest one
// there is. Used by main.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace kinora::cli {

// Throws a usage error where a command is missing or none has that name. `arguments` are those
// behind the program's name.
void check_command_names(const CLI::App& app, const std::vector<std::string>& arguments);

// The text of an error of parsing, with the command whose help to read.
std::string usage_text(const CLI::App& app, const CLI::ParseError& error);

}  // namespace kinora::cli
