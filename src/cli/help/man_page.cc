#include <fmt/format.h>

#include <functional>

#include "cli/help/completion.h"
#include "cli/help/help_format.h"

namespace kinora::cli {
namespace {

// Text for roff: no character of its own language.
std::string plain(const std::string& text) {
  std::string result;
  bool fresh = true;  // at the beginning of a line
  for (const char c : text) {
    if (fresh && (c == '.' || c == '\'')) result += "\\&";
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
    fresh = c == '\n';
  }
  return result;
}

std::string options_of(const CLI::App& command) {
  std::string text;
  for (const auto& [group, options] : option_groups(command)) {
    if (!group.empty() && group != "Flags") text += fmt::format(".PP\n.I {}\n", plain(group));
    for (const CLI::Option* option : options) {
      const auto [names, meaning] = option_text(*option);
      text += fmt::format(".TP\n.B {}\n{}\n", plain(names), plain(meaning));
    }
  }
  return text;
}

std::string command_section(const CLI::App& command) {
  std::string text = fmt::format(".SS {}\n{}.\n.PP\n.B {}\n", plain(full_name(command)),
                                 plain(command.get_description()), plain(usage_line(command)));
  text += options_of(command);
  if (!command.get_footer().empty()) {
    text += fmt::format(".PP\n.nf\n{}\n.fi\n", plain(command.get_footer()));
  }
  for (const CLI::App* sub : subcommands_of(command)) text += command_section(*sub);
  return text;
}

constexpr const char* surroundings =
    ".SH ENVIRONMENT\n"
    ".TP\n.B KINORA_MODEL\nThe model of questions that name none.\n"
    ".TP\n.B HF_HUB_CACHE, HF_HOME\nWhere models of Hugging Face's hub are kept.\n"
    ".TP\n.B HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE\nFor\n.BR \"kinora pull\" :\n"
    "a token for gated and private models, another hub, no hub at all.\n"
    ".TP\n.B XDG_DATA_HOME, XDG_CACHE_HOME\nWhere kinora keeps models, tables and caches.\n"
    ".SH EXIT STATUS\n"
    ".TS\nl l.\n"
    "0\tdone\n1\ta defect in kinora\n2\ta request that makes no sense\n"
    "3\tsomething that is not there\n4\ta damaged or hostile file\n5\tnot supported\n"
    "6\tmemory, disk or a limit\n7\ta remote source that does not answer\n130\tstopped\n"
    ".TE\n";

}  // namespace

std::string man_page(const CLI::App& app, const std::string& version) {
  std::string text = fmt::format("'\\\" t\n.TH KINORA 1 \"\" \"{}\"\n", plain(version));
  text += fmt::format(".SH NAME\nkinora \\- answers questions about long and live video\n");
  text += fmt::format(".SH SYNOPSIS\n.B {}\n", plain(usage_line(app)));
  text += fmt::format(".SH DESCRIPTION\n{}.\n", plain(app.get_description()));
  text += fmt::format(".PP\n.nf\n{}\n.fi\n", plain(app.get_footer()));
  text += ".SH OPTIONS\n" + options_of(app);
  text += ".SH COMMANDS\n";
  for (const CLI::App* command : subcommands_of(app)) text += command_section(*command);
  return text + surroundings;
}

}  // namespace kinora::cli
