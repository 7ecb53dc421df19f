#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/checks.h"
#include "cli/command_line.h"
#include "cli/model_name.h"
#include "cli/terminal/output.h"
#include "cli/terminal/terminal.h"
#include "engine/evidence/evidence_heads.h"
#include "eval/calibrate.h"

namespace kinora::cli {
namespace {

struct CalibrateFlags {
  std::vector<std::string> data;
  EngineOptions engine;
  CalibrateOptions options;
  std::string output;
  bool json = false;
};

std::vector<LayerHeads> by_layer(std::vector<size_t> heads, int64_t heads_of_layer) {
  std::sort(heads.begin(), heads.end());
  std::vector<LayerHeads> layers;
  for (const size_t head : heads) {
    const auto layer = static_cast<int>(static_cast<int64_t>(head) / heads_of_layer);
    if (layers.empty() || layers.back().layer != layer) layers.push_back({layer, 0});
    layers.back().heads |= uint64_t{1} << (static_cast<int64_t>(head) % heads_of_layer);
  }
  return layers;
}

int calibrate(CalibrateFlags& flags, const CancelToken& cancel) {
  TerminalProgress progress(flags.json);
  EvalData data;
  for (const std::string& path : flags.data) {
    EvalData more = read_eval_data(real_files(), path, cancel);
    for (const EvalProblem& problem : more.problems) {
      complain(fmt::format("{} line {}: {}", path, problem.line, problem.message));
    }
    data.items.insert(data.items.end(), more.items.begin(), more.items.end());
  }
  progress.update("loading", 0, 0);
  const auto engine = std::make_shared<const EngineState>(flags.engine, real_files());
  const ModelInfo& info = engine->model->info();
  if (info.heads > 64) {
    throw Error(ErrorKind::unsupported, "tables name heads below 64, and this model has more");
  }
  const std::string path =
      flags.output.empty() ? evidence_table_places(engine->directory).front() : flags.output;
  flags.options.cancel = cancel;
  flags.options.progress = [&](int64_t done, int64_t total) {
    progress.update("questions", done, total);
  };
  const std::vector<LookedAt> looked = look_with_all_heads(engine, data, flags.options);
  const std::vector<size_t> chosen = choose_heads(looked, flags.options.most_heads);
  progress.clear();
  if (chosen.empty()) {
    throw Error(ErrorKind::bad_input, "no head of the model looked at a frame");
  }
  EvidenceHeads table = evidence_heads_of(info);
  table.chosen = by_layer(chosen, info.heads);
  real_files().write(path, to_json(table));
  if (flags.json) {
    fmt::print("{}", to_json(table));
    return 0;
  }
  fmt::print("{}: {} questions\n", path, looked.size());
  std::vector<size_t> so_far;
  for (const size_t head : chosen) {
    so_far.push_back(head);
    const Pointing alone = pointing_of(looked, {head}), together = pointing_of(looked, so_far);
    const auto place = static_cast<int64_t>(head);
    fmt::print(
        "  layer {:>2}, head {:>2}: names the time of {:.1f} % ({:.1f} % of its attention "
        "is there); with those above {:.1f} %\n",
        place / info.heads, place % info.heads, 100 * alone.named, 100 * alone.inside,
        100 * together.named);
  }
  return 0;
}

}  // namespace

void add_calibrate(CommandLine& line) {
  auto flags = std::make_shared<CalibrateFlags>();
  CLI::App* command = line.app.add_subcommand(
      "calibrate", "Choose the heads of a model that show which times an answer rests on");
  command
      ->add_option("data", flags->data,
                   "Questions whose times are known: JSON lines with 'times' (docs/eval.md)")
      ->required()
      ->type_name("FILE…");
  command->add_option("-m,--model", flags->engine.model, "A model's name or directory")
      ->type_name("MODEL");
  command->add_option("-o,--output", flags->output,
                      "Table to write; default: kinora-evidence.json in the model's directory");
  command->add_option("--heads", flags->options.most_heads, "The most heads to choose")
      ->capture_default_str()
      ->check(whole(1, 64));
  command->add_option("--max-tokens", flags->options.max_tokens, "Longest answer, in tokens")
      ->capture_default_str()
      ->check(whole(1));
  command->add_option("--device", flags->engine.device, "auto, cpu, cuda or cuda:N")
      ->capture_default_str();
  command->add_option("--threads", flags->engine.threads, "Threads to use; 0 is one per core")
      ->capture_default_str()
      ->check(threads());
  command->add_flag("--json", flags->json, "Print the table instead of a summary");
  command->footer(
      "Examples:\n"
      "  kinora calibrate needles.jsonl scenes.jsonl -m Qwen2.5-VL-3B-Instruct\n"
      "  kinora eval others.jsonl -m Qwen2.5-VL-3B-Instruct --evidence");
  command->callback([flags, &line] {
    line.action = [flags, &line] {
      flags->engine.model = find_model(flags->engine.model);
      return calibrate(*flags, line.interrupts.token());
    };
  });
}

}  // namespace kinora::cli
