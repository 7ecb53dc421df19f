#include "cli/help/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <kinora/quality.h>

#include <functional>
#include <vector>

#include "attention/policies/policy.h"
#include "cli/help/help_format.h"
#include "eval/import.h"
#include "generate/policies.h"
#include "memory/policies.h"
#include "memory/retention/retention.h"

namespace kinora::cli {
namespace {

// What may stand behind a flag.
struct Values {
  std::vector<std::string> words{};
  bool files = false;
  bool models = false;
};

Values values_of(const CLI::Option& option) {
  const std::string name = option.get_lnames().empty() ? "" : option.get_lnames().front();
  if (name == "quality") {
    std::vector<std::string> names;
    for (const Quality& quality : qualities()) names.push_back(quality.name);
    return {names};
  }
  if (name == "attention") return {attention_point().names()};
  if (name == "retain") return {retention_point().names()};
  if (name == "memory") return {memory_point().names()};
  if (name == "draft") return {draft_point().names()};
  if (name == "device") return {{"auto", "cpu", "cuda"}};
  if (name == "filter") return {{"bicubic", "area", "bilinear", "nearest"}};
  if (name == "video-prompt") return {{"auto", "4.57", "5.10"}};
  if (name == "rule") return {{"time", "qwen"}};
  if (name == "import") return {import_formats()};
  const std::string type = option.get_type_name();
  Values values;
  values.models = type == "MODEL";
  values.files = values.models || type.find("FILE") != std::string::npos || type == "DIR";
  return values;
}

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() != 0; }

std::vector<std::string> flags_of(const CLI::Option& option) {
  std::vector<std::string> flags;
  for (const std::string& name : option.get_lnames()) flags.push_back("--" + name);
  for (const std::string& name : option.get_snames()) flags.push_back("-" + name);
  return flags;
}

void each_command(const CLI::App& command, const std::function<void(const CLI::App&)>& see) {
  see(command);
  for (const CLI::App* sub : subcommands_of(command)) each_command(*sub, see);
}

bool takes_videos(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional() && option->get_type_name().find("VIDEO") != std::string::npos) {
      return true;
    }
  }
  return false;
}

// The cases that bash and zsh share: the patterns of shells are the same in both.
std::string path_cases(const CLI::App& app) {
  std::vector<std::string> paths;
  each_command(app, [&](const CLI::App& command) {
    if (command.get_parent() != nullptr) paths.push_back("'" + full_name(command) + "'");
  });
  return fmt::format("{}", fmt::join(paths, "|"));
}

// `'kinora ask --device'|'kinora chat --device') choices='auto cpu cuda' ;;` for every flag with a
// value.
std::string value_cases(const CLI::App& app) {
  std::string text;
  each_command(app, [&](const CLI::App& command) {
    for (const CLI::Option* option : command.get_options()) {
      if (option->get_positional() || !takes_value(*option)) continue;
      std::vector<std::string> patterns;
      for (const std::string& flag : flags_of(*option)) {
        patterns.push_back("'" + full_name(command) + " " + flag + "'");
      }
      const Values values = values_of(*option);
      std::string action = fmt::format("choices='{}'", fmt::join(values.words, " "));
      if (values.models) action = "choices=\"$(kinora models --names 2>/dev/null)\"";
      if (values.files) action += " files=1";
      text += fmt::format("    {}) found=1 {} ;;\n", fmt::join(patterns, "|"), action);
    }
  });
  return text;
}

std::string word_cases(const CLI::App& app) {
  std::string text;
  each_command(app, [&](const CLI::App& command) {
    std::vector<std::string> names, flags;
    for (const CLI::App* sub : subcommands_of(command)) names.push_back(sub->get_name());
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& flag : flags_of(*option)) flags.push_back(flag);
    }
    const bool videos = takes_videos(command);
    if (videos) names.emplace_back("demo");
    text += fmt::format("    '{}') names='{}' flags='{}'{} ;;\n", full_name(command),
                        fmt::join(names, " "), fmt::join(flags, " "),
                        subcommands_of(command).empty() ? " files=1" : "");
  });
  return text;
}

// In single quotes of a shell.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'') {
      result += "'\\''";
    } else {
      result += c;
    }
  }
  return result + "'";
}

constexpr const char* made_by = "# Made by `kinora completion`; do not edit.\n";

}  // namespace

std::string bash_completion(const CLI::App& app) {
  return fmt::format(
      "{}"
      "_kinora() {{\n"
      "  local current=\"${{COMP_WORDS[COMP_CWORD]}}\" before=\"${{COMP_WORDS[COMP_CWORD - 1]}}\"\n"
      "  local at=kinora i choices='' names='' flags='' files='' found=''\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case \"$at ${{COMP_WORDS[i]}}\" in\n"
      "    {}) at=\"$at ${{COMP_WORDS[i]}}\" ;;\n"
      "    esac\n"
      "  done\n"
      "  COMPREPLY=()\n"
      "  case \"$at $before\" in\n"
      "{}"
      "  esac\n"
      "  if [ -z \"$found\" ]; then\n"
      "    case \"$at\" in\n"
      "{}"
      "    esac\n"
      "    case \"$current\" in\n"
      "    -*) choices=$flags files='' ;;\n"
      "    *) choices=$names ;;\n"
      "    esac\n"
      "  fi\n"
      "  local word\n"
      "  while IFS= read -r word; do COMPREPLY+=(\"$word\"); done < <(\n"
      "    compgen -W \"$choices\" -- \"$current\"\n"
      "    [ -n \"$files\" ] && compgen -f -- \"$current\")\n"
      "}}\n"
      "complete -o filenames -F _kinora kinora\n",
      made_by, path_cases(app), value_cases(app), word_cases(app));
}

std::string zsh_completion(const CLI::App& app) {
  return fmt::format(
      "#compdef kinora\n{}"
      "_kinora() {{\n"
      "  local current=\"${{words[CURRENT]}}\" before=\"${{words[CURRENT - 1]}}\"\n"
      "  local at=kinora i names='' flags='' files='' found=''\n"
      "  local -a line; line=(\"${{words[@]}}\")\n"
      "  for ((i = 2; i < CURRENT; i++)); do\n"
      "    case \"$at ${{line[i]}}\" in\n"
      "    {}) at=\"$at ${{line[i]}}\" ;;\n"
      "    esac\n"
      "  done\n"
      "  local choices=''\n"
      "  case \"$at $before\" in\n"
      "{}"
      "  esac\n"
      "  if [[ -z \"$found\" ]]; then\n"
      "    case \"$at\" in\n"
      "{}"
      "    esac\n"
      "    case \"$current\" in\n"
      "    -*) choices=$flags files='' ;;\n"
      "    *) choices=$names ;;\n"
      "    esac\n"
      "  fi\n"
      "  compadd -- ${{=choices}}\n"
      "  [[ -n \"$files\" ]] && _files\n"
      "  return 0\n"
      "}}\n"
      "if [ \"$funcstack[1]\" = \"_kinora\" ]; then _kinora \"$@\"; else compdef _kinora kinora; "
      "fi\n",
      made_by, path_cases(app), value_cases(app), word_cases(app));
}

std::string fish_completion(const CLI::App& app) {
  std::string text = made_by;
  each_command(app, [&](const CLI::App& command) {
    // True where exactly this command was typed.
    std::vector<std::string> seen;
    for (const CLI::App* at = &command; at->get_parent() != nullptr; at = at->get_parent()) {
      seen.insert(seen.begin(), "__fish_seen_subcommand_from " + at->get_name());
    }
    std::vector<std::string> below;
    for (const CLI::App* sub : subcommands_of(command)) below.push_back(sub->get_name());
    if (!below.empty()) {
      seen.push_back(fmt::format("not __fish_seen_subcommand_from {}", fmt::join(below, " ")));
    }
    const std::string where = quoted(fmt::format("{}", fmt::join(seen, "; and ")));
    for (const CLI::App* sub : subcommands_of(command)) {
      text += fmt::format("complete -c kinora -f -n {} -a {} -d {}\n", where, sub->get_name(),
                          quoted(sub->get_description()));
    }
    if (takes_videos(command)) {
      text += fmt::format("complete -c kinora -n {} -a demo\n", where);
    }
    for (const CLI::Option* option : command.get_options()) {
      if (option->get_positional()) continue;
      std::string line = "complete -c kinora -n " + where;
      for (const std::string& name : option->get_snames()) line += " -s " + name;
      for (const std::string& name : option->get_lnames()) line += " -l " + name;
      if (takes_value(*option)) {
        const Values values = values_of(*option);
        line += values.files ? " -r" : " -x";
        if (!values.words.empty())
          line += " -a " + quoted(fmt::format("{}", fmt::join(values.words, " ")));
        if (values.models) line += " -a '(kinora models --names 2>/dev/null)'";
      }
      text += line + " -d " + quoted(option->get_description()) + "\n";
    }
  });
  return text;
}

}  // namespace kinora::cli
