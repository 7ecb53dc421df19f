#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <kinora/session.h>

#include "base/error.h"
#include "cli/answer_text.h"
#include "cli/ask_words.h"
#include "cli/bundled.h"
#include "cli/command_line.h"
#include "cli/error_text.h"
#include "cli/evidence_sheet.h"
#include "cli/notes.h"
#include "cli/session_flags.h"
#include "cli/terminal/output.h"
#include "cli/terminal/terminal.h"
#include "cli/trace_file.h"

namespace kinora::cli {
namespace {

struct AskFlags {
  std::vector<std::string> words;  // inputs, then the question
  SessionFlags flags;
  bool json = false;
  bool ids = false;  // also those of prompt and answer
  bool dry_run = false;
  std::string evidence;  // picture to draw
};

// The answer has already been printed, so a file that cannot be written is only reported.
int write_files(const AskFlags& flags, TraceFile& trace, const Answer& answer,
                const std::vector<InputInfo>& inputs, double offset, const std::string& title) {
  try {
    trace.add(answer.spans, offset);
    trace.write(title);
    if (!flags.evidence.empty()) {
      draw_evidence(flags.evidence, answer.evidence, inputs, flags.flags.answer.cancel);
    }
  } catch (const Error& error) {
    complain(error_text(error));
    return exit_code(error.kind());
  }
  return 0;
}

int ask(AskFlags& ask_flags, const CancelToken& cancel) {
  SessionFlags& flags = ask_flags.flags;
  const bool json = ask_flags.json;
  auto [inputs, question] = split_ask_words(ask_flags.words);
  flags.follow_memory(inputs);
  flags.resolve();
  TraceFile trace(flags.trace, flags.timeline);
  TerminalProgress progress(flags.quiet || json);
  progress.update("loading", 0, 0);
  const Engine engine(flags.engine);
  progress.clear();
  const double load = engine.describe().load_seconds;
  flags.input.cancel = cancel;
  flags.answer.cancel = cancel;
  flags.session.progress = [&](std::string_view stage, int64_t done, int64_t total) {
    progress.update(stage, done, total);
  };
  const auto opening = std::chrono::steady_clock::now();
  const std::vector<std::string> given = inputs;
  Session session = flags.start(engine, flags.session, inputs);
  const std::vector<InputInfo> added = flags.add_inputs(session, inputs);
  const double open =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - opening).count();

  const Forecast forecast = session.forecast(question);
  progress.clear();
  Notes notes(!json);
  notes.add(bundled_note(flags.engine.model, given));
  notes.add(frame_notes(flags.session, flags.input.frames, engine.describe(), added));
  notes.add(sound_notes(added, flags.subtitles));
  notes.add(forecast.changes);
  notes.add(forecast.warnings);
  if (ask_flags.dry_run) {
    fmt::print("{}\n", json ? json_text(forecast_json(forecast)) : forecast_line(forecast));
    return 0;
  }
  if (progress.shown()) remark("{}\n", forecast_line(forecast));
  progress.expect(expected_stages(forecast, flags.answer.max_tokens));
  const bool seen = answer_is_seen();
  int64_t pieces = 0;  // about one for each token
  Answer answer = session.ask(question, flags.answer, [&](std::string_view piece) {
    if (json) return;
    if (seen) {
      progress.clear();
    } else {
      progress.update("answer", ++pieces, 0);
    }
    show(piece);
  });
  progress.clear();
  if (json) {
    answer.warnings = notes.with(answer.warnings);
    if (const std::string cut = cut_note(answer); !cut.empty()) answer.warnings.push_back(cut);
    nlohmann::json out = answer_json(answer, session.inputs(), forecast, load, open);
    if (ask_flags.ids) out["ids"] = {{"prompt", answer.prompt_ids}, {"answer", answer.ids}};
    show(json_text(out) + "\n");
    return write_files(ask_flags, trace, answer, session.inputs(), open, question);
  }
  show("\n");
  for (const std::string& warning : notes.unsaid(answer.warnings)) {
    complain("warning: " + warning);
  }
  if (!flags.quiet) {
    notes.add(cut_note(answer));
    const std::string evidence = evidence_text(answer.evidence, session.inputs());
    if (!evidence.empty()) remark("{}\n", evidence);
    remark("{}", flags.verbose ? report_text(answer, load, open) : closing_line(answer));
  }
  return write_files(ask_flags, trace, answer, session.inputs(), open, question);
}

}  // namespace

void add_ask(CommandLine& line) {
  auto flags = std::make_shared<AskFlags>();
  CLI::App* command = line.app.add_subcommand("ask", "Ask a question about videos and pictures");
  command
      ->add_option(
          "question", flags->words,
          "Videos and pictures (any number of files, URLs or folders, or - for a pipe), then the "
          "question in quotes; 'demo' is the clip that comes with kinora. A saved memory (kinora "
          "index) may stand first")
      ->required()
      ->expected(1, -1)
      ->type_name("VIDEO… QUESTION");
  flags->flags.add_to(*command);
  CLI::Option* json =
      command->add_flag("--json", flags->json, "Print one JSON object instead of streaming text");
  command
      ->add_flag(
          "--ids", flags->ids,
          "With --json: the token ids of the prompt and of the answer, to compare with others")
      ->needs(json);
  command->add_flag("--dry-run", flags->dry_run,
                    "Only say what the question would cost: frames, tokens, memory, time");
  command->add_option("--evidence", flags->evidence, "Draw the frames that the answer rests on")
      ->type_name("FILE.png");
  command->footer(
      "Examples:\n"
      "  kinora ask demo \"What happens in this video?\"\n"
      "  kinora ask talk.mp4 \"What is the talk about?\" -m Qwen2.5-VL-3B-Instruct\n"
      "  kinora ask talk.mp4 \"Read the slide\" -m DIR --start 60 --end 75 --fps 4\n"
      "  kinora ask talk.mp4 \"Who disagrees?\" -m DIR --subtitles talk.srt\n"
      "  kinora ask film.mkv \"How does it end?\" -m DIR --quality fast --memory-budget 6GiB\n"
      "  kinora ask talk.kinora \"And then?\"\n"
      "  kinora ask before.png after.png \"What changed?\" -m DIR --json\n"
      "  kinora ask \"Who are you?\"\n\n"
      "Without --fps and --frames the model family's own sampling rule is used.");
  command->callback([flags, &line] {
    line.action = [flags, &line] { return ask(*flags, line.interrupts.token()); };
  });
}

}  // namespace kinora::cli
