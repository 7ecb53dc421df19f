#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <kinora/session.h>

#include "cli/bundled.h"
#include "cli/command_line.h"
#include "cli/terminal.h"

namespace kinora::cli {
namespace {

struct AskFlags {
  std::vector<std::string> words;  // inputs, then the question
  EngineOptions engine;
  SessionOptions session;
  InputOptions input;
  AnswerOptions answer;
  bool json = false;
  bool quiet = false;
};

double rate(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

std::string timing_line(const Answer& answer, double load, double open) {
  const Timings& t = answer.timings;
  return fmt::format(
      "{} frames, {} tokens | load {}, open {}, decode {} CPU ({} waited), vision {}, prefill {} "
      "({:.0f} tokens/s), first token {}, {} tokens at {:.1f}/s | peak memory {}",
      answer.frames, answer.prompt_tokens, human_seconds(load), human_seconds(open),
      human_seconds(t.decode), human_seconds(t.decode_wait), human_seconds(t.vision),
      human_seconds(t.prefill), rate(static_cast<double>(answer.prompt_tokens), t.prefill),
      human_seconds(t.first_token), answer.ids.size(),
      rate(static_cast<double>(answer.ids.size()), t.generate), human_bytes(peak_memory()));
}

nlohmann::json as_json(const Answer& answer, const std::vector<InputInfo>& inputs, double load,
                       double open) {
  const Timings& t = answer.timings;
  nlohmann::json described = nlohmann::json::array();
  for (const InputInfo& input : inputs) {
    described.push_back({{"source", input.source},
                         {"kind", input.kind},
                         {"width", input.width},
                         {"height", input.height},
                         {"tokens", input.tokens},
                         {"times", input.times}});
  }
  return {{"answer", answer.text},
          {"stop", answer.stop},
          {"frames", answer.frames},
          {"inputs", described},
          {"tokens",
           {{"prompt", answer.prompt_tokens},
            {"visual", answer.visual_tokens},
            {"answer", answer.ids.size()}}},
          {"timings",
           {{"load", load},
            {"open", open},
            {"decode", t.decode},
            {"decode_wait", t.decode_wait},
            {"vision", t.vision},
            {"prefill", t.prefill},
            {"first_token", t.first_token},
            {"generate", t.generate},
            {"total", t.total}}},
          {"row_bytes", answer.row_bytes},
          {"attention", answer.attention_report},
          {"peak_memory", peak_memory()},
          {"warnings", answer.warnings}};
}

int ask(AskFlags& flags, const CancelToken& cancel) {
  TerminalProgress progress(flags.quiet || flags.json);
  progress.update("loading", 0, 0);
  if (flags.engine.model.empty()) flags.engine.model = default_model();
  const Engine engine(flags.engine);
  progress.clear();
  const double load = engine.describe().load_seconds;
  flags.input.cancel = cancel;
  flags.answer.cancel = cancel;
  flags.session.progress = [&](std::string_view stage, int64_t done, int64_t total) {
    progress.update(stage, done, total);
  };
  Session session(engine, flags.session);
  const auto opening = std::chrono::steady_clock::now();
  std::vector<InputInfo> inputs;
  for (size_t i = 0; i + 1 < flags.words.size(); ++i) {
    inputs.push_back(session.add(input_or_demo(flags.words[i]), flags.input));
  }
  const double open =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - opening).count();

  const Answer answer = session.ask(flags.words.back(), flags.answer, [&](std::string_view piece) {
    if (flags.json) return;
    progress.clear();
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  });
  progress.clear();
  if (flags.json) {
    fmt::print("{}\n", as_json(answer, inputs, load, open).dump(2));
    return 0;
  }
  fmt::print("\n");
  std::fflush(stdout);
  for (const std::string& warning : answer.warnings) {
    fmt::print(stderr, "kinora: warning: {}\n", warning);
  }
  if (!flags.quiet) {
    if (!answer.attention_report.empty()) fmt::print(stderr, "{}\n", answer.attention_report);
    fmt::print(stderr, "{}\n", timing_line(answer, load, open));
  }
  return 0;
}

}  // namespace

void add_ask(CommandLine& line) {
  auto flags = std::make_shared<AskFlags>();
  CLI::App* command = line.app.add_subcommand("ask", "Ask a question about videos and pictures");
  command
      ->add_option("words", flags->words,
                   "VIDEO or IMAGE (any number of files, URLs or folders), then the QUESTION")
      ->required()
      ->expected(1, -1)
      ->type_name("INPUT… QUESTION");
  command
      ->add_option("-m,--model", flags->engine.model,
                   "Model directory, as Hugging Face publishes it; default: $KINORA_MODEL, else "
                   "the bundled kinora-tiny")
      ->type_name("DIR");
  command->add_option("--fps", flags->input.fps, "Frames a second to look at")
      ->group("Which frames");
  command->add_option("--frames", flags->input.frames, "Number of frames to look at, evenly spread")
      ->group("Which frames");
  command->add_option("--start", flags->input.start, "Begin at this second")->group("Which frames");
  command->add_option("--end", flags->input.end, "End at this second")->group("Which frames");
  command->add_option("--max-pixels", flags->input.max_pixels, "Most pixels of one frame")
      ->group("Which frames")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--max-tokens", flags->answer.max_tokens, "Longest answer, in tokens")
      ->group("The answer")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--temperature", flags->answer.temperature,
                   "0 is greedy; default: the model's own")
      ->group("The answer");
  command->add_option("--top-k", flags->answer.top_k, "Choose among so many tokens")
      ->group("The answer");
  command->add_option("--top-p", flags->answer.top_p, "Choose within this probability mass")
      ->group("The answer");
  command
      ->add_option("--min-p", flags->answer.min_p,
                   "Drop tokens less likely than this share of the best")
      ->group("The answer");
  command
      ->add_option("--repetition-penalty", flags->answer.repetition_penalty,
                   "Above 1 discourages tokens already used")
      ->group("The answer");
  command->add_option("--seed", flags->answer.seed, "Seed of the random choice")
      ->group("The answer")
      ->capture_default_str();
  command
      ->add_option("--stop", flags->answer.stop,
                   "End the answer before this text (may be repeated)")
      ->group("The answer")
      ->expected(1)
      ->take_all();
  command
      ->add_option("--system", flags->session.system, "System prompt in place of the model's own")
      ->group("The answer");
  command
      ->add_option("--attention", flags->session.attention,
                   "dense, or a sparse policy: momo, mminference, a-shape, tri-shape, "
                   "vertical-slash, grid, sf-fixed, sf-strided")
      ->group("Policies")
      ->capture_default_str();
  command
      ->add_option("--dense-below", flags->session.dense_below,
                   "Rows under which a sparse policy runs densely; 0: never")
      ->group("Policies")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--device", flags->engine.device, "auto, cpu, cuda or cuda:N")
      ->group("The machine")
      ->capture_default_str();
  command->add_option("--threads", flags->engine.threads, "Threads to use; 0 is one per core")
      ->group("The machine")
      ->capture_default_str();
  command
      ->add_option("--frames-per-group", flags->session.frames_per_group,
                   "Frames decoded, encoded and prefilled together")
      ->group("The machine")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command
      ->add_flag("--check-weights", flags->engine.check_weights,
                 "Read every weight first and refuse NaN and infinity")
      ->group("The machine");
  command->add_flag("--json", flags->json, "Print one JSON object instead of streaming text");
  command->add_flag("-q,--quiet", flags->quiet, "No progress, no timing line");
  command->footer(
      "Examples:\n"
      "  kinora ask demo \"What happens in this video?\"\n"
      "  kinora ask talk.mp4 \"What is the talk about?\" -m Qwen2.5-VL-3B-Instruct\n"
      "  kinora ask talk.mp4 \"Read the slide\" -m DIR --start 60 --end 75 --fps 4\n"
      "  kinora ask before.png after.png \"What changed?\" -m DIR --json\n"
      "  kinora ask \"Who are you?\"\n\n"
      "Without --fps and --frames the model family's own sampling rule is used.");
  command->callback(
      [flags, &line] { line.action = [flags, &line] { return ask(*flags, line.interrupt); }; });
}

}  // namespace kinora::cli
