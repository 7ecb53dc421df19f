#include <fmt/format.h>
#include <kinora/quality.h>

#include <memory>
#include <string>

#include "base/error.h"
#include "cli/command_line.h"

namespace kinora::cli {
namespace {

std::string frame_policy(const Quality& quality) {
  if (quality.frame_share == 1 && quality.pixel_share == 1) {
    return "frames by the model's own rule";
  }
  std::string text;
  if (quality.frame_share < 1)
    text = fmt::format("{:g} of that rule's frames", quality.frame_share);
  if (quality.pixel_share < 1) {
    text += fmt::format("{}{:g} of its pixels", text.empty() ? "" : ", ", quality.pixel_share);
  }
  return text;
}

std::string quality_help() {
  std::string text =
      "--quality names a tested combination of policies; a policy given by itself goes before "
      "it.\n\n";
  for (const Quality& quality : qualities()) {
    text += fmt::format("  {:<10}{}\n            --attention {} --retain {}{}; {}\n", quality.name,
                        quality.summary, quality.attention, quality.retain,
                        quality.native_bf16 ? " --bf16" : "", frame_policy(quality));
  }
  text +=
      "\nThe bundled model, measured on 2026-11-15 (docs/results.md has the rest):\n\n"
      "                                            exact     balanced  fast\n"
      "  right answers, 256 frames, every skill    99.4 %    99.4 %    99.1 %\n"
      "  needles in 4096 frames                    99.1 %    98.8 %    96.3 %\n"
      "  first token, 10 minutes, two cores        38.7 s    21.2 s    16.3 s\n"
      "  memory, peak                              249 MiB   241 MiB   224 MiB\n"
      "  of that keys and values                   79 MiB    79 MiB    47 MiB\n"
      "\n'kinora eval' measures them on your own questions (--policy quality=fast).\n";
  return text;
}

std::string attention_help() {
  return "--attention says which rows of memory a token reads while a prompt is read:\n\n"
         "  dense           all of them\n"
         "  mminference     by the table of the model's heads that 'kinora tune' makes\n"
         "  momo            blocks that sampled tokens find strongest, then a correction\n"
         "  vertical-slash  columns and diagonals that the last 64 tokens find strongest\n"
         "  grid            every Nth row, column and diagonal; N and phase are searched\n"
         "  a-shape         the first tokens and the nearest\n"
         "  tri-shape       the same, and all for the last tokens of a group\n"
         "  sf-fixed, sf-strided   SparseTransformer's two patterns\n"
         "  mean-pool, oracle      yardsticks: blocks chosen by their mean key, by the true "
         "scores\n\n"
         "Settings follow a colon, '+delta' corrects any of them by exact samples:\n"
         "  --attention momo:rank=mass   --attention a-shape:sink=64,local=2048+delta\n\n"
         "A question itself always reads everything, and so do groups with fewer rows in memory "
         "than\n"
         "--dense-below. Sparse attention runs on the CPU. 'kinora inspect attention' draws it,\n"
         "'kinora eval --policy momo' measures it on your own questions; docs/results.md says what "
         "it\n"
         "costs the bundled model, docs/methods/ how it works.\n";
}

}  // namespace

void add_help(CommandLine& line) {
  auto topic = std::make_shared<std::string>();
  CLI::App* command = line.app.add_subcommand("help", "Explain a command or a topic");
  command->add_option("topic", *topic, "A command, or: quality, attention")->type_name("TOPIC");
  command->callback([topic, &line] {
    line.action = [topic, &line] {
      if (topic->empty()) {
        // App::help() would print that of the command under way, which is this one.
        fmt::print("{}", line.app.get_formatter()->make_help(&line.app, line.app.get_name(),
                                                             CLI::AppFormatMode::Normal));
        return 0;
      }
      if (*topic == "quality" || *topic == "attention") {
        fmt::print("{}", *topic == "quality" ? quality_help() : attention_help());
        return 0;
      }
      for (const CLI::App* known : line.app.get_subcommands([](CLI::App*) { return true; })) {
        if (known->get_name() != *topic) continue;
        fmt::print("{}", known->help(line.app.get_name()));
        return 0;
      }
      throw Error(ErrorKind::usage,
                  fmt::format("there is no help on '{}'; see 'kinora --help'", *topic));
    };
  });
}

}  // namespace kinora::cli
