// How the help of a command reads: what it does, how it is called, its flags by group with lines
// broken between words, and its examples. The man page and the shells' completions are made from
// the same definitions.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kinora::cli {

// A flag or a positional as help shows it.
struct OptionText {
  std::string names;    // "-m, --model DIR"
  std::string meaning;  // with its default
};
OptionText option_text(const CLI::Option& option);

// The command's options by group, in order of definition; positionals come first, without a name.
using OptionGroups = std::vector<std::pair<std::string, std::vector<const CLI::Option*>>>;
OptionGroups option_groups(const CLI::App& command);

// "kinora ask [flags] INPUT… QUESTION"
std::string usage_line(const CLI::App& command);
// "kinora inspect attention"
std::string full_name(const CLI::App& command);

std::vector<const CLI::App*> subcommands_of(const CLI::App& command);

std::string help_text(const CLI::App& command);

// For the program: commands added after it was set use it too.
std::shared_ptr<CLI::FormatterBase> help_formatter();

}  // namespace kinora::cli
