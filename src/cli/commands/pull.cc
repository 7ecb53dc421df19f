#ifdef KINORA_HAS_PULL

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/checks.h"
#include "cli/command_line.h"
#include "cli/terminal/output.h"
#include "cli/terminal/terminal.h"
#include "pull/pull.h"

namespace kinora::cli {
namespace {

struct PullFlags {
  PullOptions pull;
  bool json = false;
  bool quiet = false;
};

int run_pull(PullFlags& flags, const CancelToken& cancel) {
  TerminalProgress progress(flags.quiet || flags.json);
  flags.pull.settings = HubSettings::from_environment();
  flags.pull.cancel = cancel;
  flags.pull.progress = &progress;
  const PullResult result = pull(flags.pull);
  progress.clear();
  if (flags.json) {
    const nlohmann::json out = {{"name", flags.pull.name},  {"revision", flags.pull.revision},
                                {"commit", result.commit},  {"directory", result.snapshot},
                                {"files", result.files},    {"bytes", result.bytes},
                                {"fetched", result.fetched}};
    fmt::print("{}\n", json_text(out));
    return 0;
  }
  fmt::print("{}\n", result.snapshot);
  if (!flags.quiet) {
    remark("{} files, {}, {} fetched now; use it with -m {}\n", result.files,
           human_bytes(result.bytes), human_bytes(result.fetched), flags.pull.name);
  }
  return 0;
}

}  // namespace

void add_pull(CommandLine& line) {
  auto flags = std::make_shared<PullFlags>();
  CLI::App* command = line.app.add_subcommand("pull", "Download a model from Hugging Face's hub");
  command->add_option("model", flags->pull.name, "Its name, such as Qwen/Qwen2.5-VL-3B-Instruct")
      ->required()
      ->type_name("ORG/NAME");
  command->add_option("--revision", flags->pull.revision, "Branch, tag or commit")
      ->capture_default_str()
      ->type_name("REVISION");
  command
      ->add_option("--include", flags->pull.include,
                   "Only files that match, such as '*.json' (may be repeated); without it all but "
                   "weights in forms that kinora does not read")
      ->expected(1)
      ->take_all()
      ->type_name("GLOB");
  command->add_option("--jobs", flags->pull.jobs, "Files to download at a time")
      ->capture_default_str()
      ->check(whole(1, 64));
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->add_flag("-q,--quiet", flags->quiet, "No progress, no summary");
  command->footer(
      "Examples:\n"
      "  kinora pull Qwen/Qwen2.5-VL-3B-Instruct\n"
      "  kinora pull org/name --revision v1.1 --include '*.json'\n"
      "  HF_TOKEN=hf_… kinora pull org/private\n\n"
      "Files go where Hugging Face's own client keeps them ($HF_HUB_CACHE, else $HF_HOME/hub), so "
      "that\neither finds what the other fetched. The same command goes on after an interruption. "
      "Other hubs:\n$HF_ENDPOINT. Proxies: $https_proxy, $no_proxy.");
  command->callback([flags, &line] {
    line.action = [flags, &line] { return run_pull(*flags, line.interrupts.token()); };
  });
}

}  // namespace kinora::cli

#endif
