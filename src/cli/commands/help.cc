#include <fmt/format.h>
#include <fmt/ranges.h>
#include <kinora/quality.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "attention/policies/policy.h"
#include "base/error.h"
#include "cli/command_line.h"
#include "cli/help/completion.h"
#include "cli/help/help_format.h"
#include "cli/help/needs.h"
#include "cli/help/quality_figures.h"
#include "cli/help/wrap.h"
#include "cli/policies.h"
#include "engine/tokens/tokens.h"
#include "memory/retention/retention.h"

namespace kinora::cli {
namespace {

std::string frame_policy(const Quality& quality) {
  std::vector<std::string> parts = {"frames by the model's own rule"};
  if (quality.frame_share < 1) {
    parts = {fmt::format("{:g} of that rule's frames", quality.frame_share)};
  }
  if (quality.snap_share > 0) {
    parts.push_back(fmt::format("up to {:g} of their distance away", quality.snap_share));
  }
  if (quality.pixel_share < 1) {
    parts.push_back(fmt::format("{:g} of its pixels", quality.pixel_share));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string quality_help() {
  std::string text =
      "--quality names a tested combination of policies; a policy given explicitly overrides "
      "it.\n\n";
  for (const Quality& quality : qualities()) {
    text += entry(2, quality.name, 12, quality.summary);
    text += entry(0, "", 12,
                  fmt::format("--attention {} --tokens {} --retain {} --rows {}{}; {}",
                              quality.attention, quality.tokens, quality.retain, quality.rows,
                              quality.native_bf16 ? " --bf16" : "", frame_policy(quality)));
  }
  text += fmt::format("\nThe bundled model, measured on {} (docs/results/ has the rest):\n\n",
                      fmt::join(quality_dates(), " and "));
  size_t names = 0;
  for (const std::vector<std::string>& line : quality_figures()) {
    names = std::max(names, width_of(line.front()));
  }
  bool first = true;
  for (const std::vector<std::string>& line : quality_figures()) {
    text += fmt::format("  {:<{}}", first ? "" : line.front(), names);
    for (size_t i = 1; i < line.size(); ++i) text += fmt::format("  {:>9}", line[i]);
    text += "\n";
    first = false;
  }
  text += "\n'kinora eval' measures them on your own questions (--policy quality=fast).\n";
  return text;
}

// What is worth knowing of a point besides its names; the topic of its name.
std::string point_help(const PolicyPoint& point) {
  std::string text;
  if (&point == &attention_point()) {
    text = "--attention says which rows of memory a token reads while a prompt is read:\n\n" +
           policy_list(point) +
           "\nSettings follow a colon, '+delta' corrects any of them by exact samples:\n"
           "  --attention momo:rank=mass   --attention a-shape:sink=64,local=2048+delta\n\n"
           "The last words of a question read everything (last=N), and so do groups with fewer "
           "rows in memory\nthan --dense-below. 'kinora inspect attention' draws it, 'kinora eval "
           "--policy momo' measures it\non your own questions; docs/results/ says what it costs "
           "the bundled model, docs/methods/ how it\nworks.\n";
  } else if (&point == &retention_point()) {
    text = "--retain says what a group of frames leaves in memory; text always stays:\n\n" +
           policy_list(point) +
           "\nThe ratio is the share of a group's rows that stays: --retain key-norm:0.5. "
           "'kinora ask --dry-run'\nsays what memory that needs.\n";
  } else if (&point == &tokens_point()) {
    text = "--tokens says which visual tokens reach the decoder; pictures are left whole:\n\n" +
           policy_list(point) +
           "\nThe ratio is the share of a group's tokens that goes on: --tokens evs:0.25. What is "
           "left out is\nnever prefilled and takes no memory; --retain chooses later, among rows "
           "that were prefilled.\n";
  } else {
    text = fmt::format("{}: {}\n\n{}", point.name, point.summary, policy_list(point));
  }
  return text + "\n'kinora help policies' lists all settings with their defaults.\n";
}

}  // namespace

void add_help(CommandLine& line) {
  auto topic = std::make_shared<std::string>();
  auto markdown = std::make_shared<bool>(false);
  auto man = std::make_shared<bool>(false);
  std::string topics = "needs, quality, policies";
  for (const PolicyPoint* point : policy_points()) topics += ", " + point->name;
  CLI::App* command = line.app.add_subcommand("help", "Explain a command or a topic");
  command->add_option("topic", *topic, "A command, or: " + topics)->type_name("TOPIC");
  command->add_flag("--markdown", *markdown,
                    "Of policies and needs: as Markdown, as in docs/policies.md and README.md");
  command->add_flag("--man", *man, "All commands as a page for man(1)");
  command->footer(
      "Examples:\n"
      "  kinora help ask\n"
      "  kinora help needs\n"
      "  kinora help quality\n"
      "  kinora help policies");
  command->callback([topic, markdown, man, &line] {
    line.action = [topic, markdown, man, &line] {
      if (*man) {
        fmt::print("{}", man_page(line.app, version_line()));
        return 0;
      }
      if (*markdown && *topic != "policies" && *topic != "needs") {
        throw Error(ErrorKind::usage, "only the topics policies and needs have a Markdown form");
      }
      if (topic->empty()) {
        fmt::print("{}", help_text(line.app));
        return 0;
      }
      if (*topic == "needs") {
        fmt::print("{}", needs_text(*markdown));
        return 0;
      }
      if (*topic == "quality" || *topic == "policies") {
        fmt::print("{}", *topic == "quality" ? quality_help()
                         : *markdown         ? policies_markdown()
                                             : policies_text());
        return 0;
      }
      for (const PolicyPoint* point : policy_points()) {
        if (point->name != *topic) continue;
        fmt::print("{}", point_help(*point));
        return 0;
      }
      std::vector<std::string> known = {"needs", "quality", "policies"};
      for (const PolicyPoint* point : policy_points()) known.push_back(point->name);
      for (const CLI::App* explained : subcommands_of(line.app)) {
        known.push_back(explained->get_name());
        if (explained->get_name() != *topic) continue;
        fmt::print("{}", help_text(*explained));
        return 0;
      }
      throw Error(ErrorKind::usage, fmt::format("there is no help on {}; {}", in_quotes(*topic),
                                                suggest_name(*topic, known)));
    };
  });
}

}  // namespace kinora::cli
