#include "cli/help/help_format.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/help/wrap.h"

namespace kinora::cli {
namespace {

// What stands for a value: "N" for CLI11's INT, else the name that the command gave.
std::string value_name(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type == "INT" || type == "UINT") return "N";
  if (type == "FLOAT") return "NUMBER";
  return type;
}

size_t left_column(const OptionGroups& groups) {
  size_t widest = 0;
  for (const auto& [name, options] : groups) {
    for (const CLI::Option* option : options) {
      const size_t width = width_of(option_text(*option).names);
      if (width <= 26) widest = std::max(widest, width);
    }
  }
  return widest + 4;
}

// Long names stand on a line of their own.
std::string row(const std::string& left, size_t column, const std::string& text) {
  if (width_of(left) + 4 > column) {
    return entry(2, left, 0, "") + entry(0, "", column, text);
  }
  return entry(2, left, column, text);
}

class HelpFormatter final : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* command, std::string, CLI::AppFormatMode) const override {
    return help_text(*command);
  }
};

}  // namespace

std::vector<const CLI::App*> subcommands_of(const CLI::App& command) {
  std::vector<const CLI::App*> named;
  for (const CLI::App* sub : command.get_subcommands([](const CLI::App*) { return true; })) {
    if (!sub->get_name().empty() && !sub->get_group().empty()) named.push_back(sub);
  }
  return named;
}

std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return (parent == nullptr ? "" : full_name(*parent) + " ") + command.get_name();
}

OptionText option_text(const CLI::Option& option) {
  OptionText text;
  if (option.get_positional()) {
    text.names = value_name(option);
    text.meaning = option.get_description();
    return text;
  }
  for (const std::string& name : option.get_snames()) {
    text.names += (text.names.empty() ? "-" : ", -") + name;
  }
  for (const std::string& name : option.get_lnames()) {
    text.names += (text.names.empty() ? "--" : ", --") + name;
  }
  text.meaning = option.get_description();
  if (option.get_items_expected_max() == 0) return text;
  text.names += " " + value_name(option);
  if (!option.get_default_str().empty()) {
    text.meaning += fmt::format(" (default {})", option.get_default_str());
  }
  return text;
}

OptionGroups option_groups(const CLI::App& command) {
  OptionGroups groups{{"", {}}, {"Flags", {}}};
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    const std::string name = option->get_positional()           ? ""
                             : option->get_group() == "Options" ? "Flags"
                                                                : option->get_group();
    auto found = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& group) { return group.first == name; });
    if (found == groups.end()) found = groups.insert(groups.end(), {name, {}});
    found->second.push_back(option);
  }
  std::erase_if(groups, [](const auto& group) { return group.second.empty(); });
  return groups;
}

std::string usage_line(const CLI::App& command) {
  std::string line = full_name(command);
  if (!subcommands_of(command).empty()) return line + " COMMAND …";
  line += " [FLAGS]";
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_positional()) continue;
    const std::string name = value_name(*option);
    line += option->get_required() ? " " + name : " [" + name + "]";
  }
  return line;
}

std::string help_text(const CLI::App& command) {
  std::string text = entry(0, "", 0, command.get_description() + ".");
  text += "\nUsage: " + usage_line(command) + "\n";
  const OptionGroups groups = option_groups(command);
  const size_t column = left_column(groups);
  const std::vector<const CLI::App*> commands = subcommands_of(command);
  if (!commands.empty()) {
    text += "\nCommands:\n";
    size_t widest = 0;
    for (const CLI::App* sub : commands) widest = std::max(widest, width_of(sub->get_name()));
    for (const CLI::App* sub : commands) {
      text += entry(2, sub->get_name(), widest + 4, sub->get_description());
    }
  }
  for (const auto& [name, options] : groups) {
    text += name.empty() ? "\n" : "\n" + name + ":\n";
    for (const CLI::Option* option : options) {
      const auto [names, meaning] = option_text(*option);
      text += row(names, column, meaning);
    }
  }
  if (!command.get_footer().empty()) text += "\n" + command.get_footer() + "\n";
  return text;
}

std::shared_ptr<CLI::FormatterBase> help_formatter() { return std::make_shared<HelpFormatter>(); }

}  // namespace kinora::cli
