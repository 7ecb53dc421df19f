#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/command_line.h"
#include "cli/terminal.h"
#include "engine/session.h"

namespace kinora::cli {
namespace {

struct AskFlags {
  std::vector<std::string> words;  // inputs, then the question
  EngineOptions engine;
  std::optional<double> fps;
  std::optional<int64_t> frames;
  std::optional<double> start;
  std::optional<double> end;
  int64_t max_pixels = 0;
  std::string system;
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
  double min_p = 0;
  std::optional<double> repetition_penalty;
  uint64_t seed = 0;
  std::vector<std::string> stop;
  int64_t max_tokens = 512;
  int64_t frames_per_group = 16;
  bool json = false;
  bool quiet = false;
};

GenerateOptions generation(const AskFlags& flags, const GenerationDefaults& defaults,
                           const CancelToken& cancel) {
  GenerateOptions options;
  options.sampling.temperature = flags.temperature.value_or(defaults.temperature);
  options.sampling.top_k = flags.top_k.value_or(defaults.top_k);
  options.sampling.top_p = flags.top_p.value_or(defaults.top_p);
  options.sampling.min_p = flags.min_p;
  options.sampling.repetition_penalty =
      flags.repetition_penalty.value_or(defaults.repetition_penalty);
  options.sampling.seed = flags.seed;
  options.stop = flags.stop;
  options.max_tokens = flags.max_tokens;
  options.cancel = cancel;
  return options;
}

VisualRequest visual_request(const AskFlags& flags, const std::string& source) {
  VisualRequest request;
  request.source = source;
  request.fps = flags.fps;
  request.frames = flags.frames;
  if (flags.start) request.start = *flags.start;
  if (flags.end) request.end = *flags.end;
  request.limits.max_pixels = flags.max_pixels;
  return request;
}

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

nlohmann::json as_json(const Answer& answer, const Session& session, double load, double open) {
  const Timings& t = answer.timings;
  nlohmann::json inputs = nlohmann::json::array();
  for (const VisualInput& input : session.inputs()) {
    nlohmann::json times = nlohmann::json::array();
    for (const SampledFrame& sample : input.samples) times.push_back(sample.time);
    inputs.push_back({{"source", input.source},
                      {"kind", modality_name(input.plan.source.modality)},
                      {"width", input.plan.frame_size.width},
                      {"height", input.plan.frame_size.height},
                      {"tokens", input.plan.tokens()},
                      {"times", times}});
  }
  return {{"answer", answer.text},
          {"stop", stop_reason_name(answer.reason)},
          {"frames", answer.frames},
          {"inputs", inputs},
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
          {"peak_memory", peak_memory()},
          {"warnings", answer.warnings}};
}

int ask(const AskFlags& flags, const CancelToken& cancel) {
  TerminalProgress progress(flags.quiet || flags.json);
  progress.update("loading", 0, 0);
  const auto engine = Engine::open(flags.engine);
  SessionOptions options;
  options.progress = &progress;
  options.cancel = cancel;
  options.system = flags.system;
  options.frames_per_group = flags.frames_per_group;
  Session session(engine, options);
  progress.clear();
  const auto opening = std::chrono::steady_clock::now();
  for (size_t i = 0; i + 1 < flags.words.size(); ++i) {
    session.add(visual_request(flags, flags.words[i]));
  }
  const double open =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - opening).count();

  const GenerateOptions generate = generation(flags, engine->model().info().generation, cancel);
  const Answer answer = session.ask(flags.words.back(), generate, [&](std::string_view piece) {
    if (flags.json) return;
    progress.clear();
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  });
  progress.clear();
  if (flags.json) {
    // Text of a damaged token sequence may hold U+FFFD but is always valid UTF-8.
    fmt::print("{}\n", as_json(answer, session, engine->load_seconds(), open).dump(2));
    return 0;
  }
  fmt::print("\n");
  std::fflush(stdout);
  for (const std::string& warning : answer.warnings) {
    fmt::print(stderr, "kinora: warning: {}\n", warning);
  }
  if (!flags.quiet) {
    fmt::print(stderr, "{}\n", timing_line(answer, engine->load_seconds(), open));
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
                   "Model directory, as Hugging Face publishes it")
      ->required()
      ->type_name("DIR");
  command->add_option("--fps", flags->fps, "Frames a second to look at")->group("Which frames");
  command->add_option("--frames", flags->frames, "Number of frames to look at, evenly spread")
      ->group("Which frames");
  command->add_option("--start", flags->start, "Begin at this second")->group("Which frames");
  command->add_option("--end", flags->end, "End at this second")->group("Which frames");
  command->add_option("--max-pixels", flags->max_pixels, "Most pixels of one frame")
      ->group("Which frames")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--max-tokens", flags->max_tokens, "Longest answer, in tokens")
      ->group("The answer")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--temperature", flags->temperature, "0 is greedy; default: the model's own")
      ->group("The answer");
  command->add_option("--top-k", flags->top_k, "Choose among so many tokens")->group("The answer");
  command->add_option("--top-p", flags->top_p, "Choose within this probability mass")
      ->group("The answer");
  command
      ->add_option("--min-p", flags->min_p, "Drop tokens less likely than this share of the best")
      ->group("The answer");
  command
      ->add_option("--repetition-penalty", flags->repetition_penalty,
                   "Above 1 discourages tokens already used")
      ->group("The answer");
  command->add_option("--seed", flags->seed, "Seed of the random choice")
      ->group("The answer")
      ->capture_default_str();
  command->add_option("--stop", flags->stop, "End the answer before this text (may be repeated)")
      ->group("The answer")
      ->expected(1)
      ->take_all();
  command->add_option("--system", flags->system, "System prompt in place of the model's own")
      ->group("The answer");
  command->add_option("--device", flags->engine.device, "auto, cpu, cuda or cuda:N")
      ->group("The machine")
      ->capture_default_str();
  command->add_option("--threads", flags->engine.threads, "Threads to use; 0 is one per core")
      ->group("The machine")
      ->capture_default_str();
  command
      ->add_option("--frames-per-group", flags->frames_per_group,
                   "Frames decoded, encoded and prefilled together")
      ->group("The machine")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command
      ->add_flag("--check-weights", flags->engine.check_finite,
                 "Read every weight first and refuse NaN and infinity")
      ->group("The machine");
  command->add_flag("--json", flags->json, "Print one JSON object instead of streaming text");
  command->add_flag("-q,--quiet", flags->quiet, "No progress, no timing line");
  command->footer(
      "Examples:\n"
      "  kinora ask talk.mp4 \"What is the talk about?\" -m Qwen2.5-VL-3B-Instruct\n"
      "  kinora ask talk.mp4 \"Read the slide\" -m DIR --start 60 --end 75 --fps 4\n"
      "  kinora ask before.png after.png \"What changed?\" -m DIR --json\n"
      "  kinora ask \"Say hello\" -m DIR\n\n"
      "Without --fps and --frames the model family's own sampling rule is used.");
  command->callback(
      [flags, &line] { line.action = [flags, &line] { return ask(*flags, line.interrupt); }; });
}

}  // namespace kinora::cli
