#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <kinora/session.h>

#include "base/error.h"
#include "base/file.h"
#include "cli/answer_text.h"
#include "cli/bundled.h"
#include "cli/chat_commands.h"
#include "cli/command_line.h"
#include "cli/error_text.h"
#include "cli/evidence_sheet.h"
#include "cli/library_entry.h"
#include "cli/model_name.h"
#include "cli/notes.h"
#include "cli/session_flags.h"
#include "cli/terminal/line_reader.h"
#include "cli/terminal/output.h"
#include "cli/terminal/terminal.h"
#include "cli/trace_file.h"

namespace kinora::cli {
namespace {

struct ChatFlags {
  std::vector<std::string> sources;
  SessionFlags flags;
};

class Chat {
 public:
  Chat(ChatFlags& chat, Interrupts& interrupts)
      : flags_(chat.flags),
        interrupts_(interrupts),
        trace_(flags_.trace, flags_.timeline),
        progress_(flags_.quiet),
        engine_(flags_.engine),
        sources_(chat.sources),
        session_(flags_.start(engine_, with_progress(flags_.session), sources_)) {}

  int run() {
    open();
    LineReader lines("> ", history_place(), complete_chat);
    if (lines.on_terminal() && !flags_.quiet) {
      fmt::print("{} is ready. /help lists the commands.\n", model_title(flags_.engine.model));
    }
    while (!Interrupts::asked_to_end()) {
      const std::optional<std::string> line = lines.next();
      if (!line) break;
      const size_t begin = line->find_first_not_of(" \t");
      if (begin == std::string::npos) continue;
      const std::string text = line->substr(begin);
      if (text[0] != '/') {
        answer(text);
      } else if (!obey(text)) {
        break;
      }
      show("");
    }
    trace_.write("kinora chat");
    return lines.interrupted() ? exit_code(ErrorKind::cancelled) : 0;
  }

 private:
  SessionOptions with_progress(SessionOptions options) {
    options.progress = [this](std::string_view stage, int64_t done, int64_t total) {
      progress_.update(stage, done, total);
    };
    return options;
  }

  double now() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

  void tell(const Error& error) {
    progress_.clear();
    complain(error_text(error));
  }

  void open() {
    flags_.input.cancel = interrupts_.token();
    const std::vector<InputInfo> added = flags_.add_inputs(session_, sources_);
    if (!sources_.empty()) read(added, flags_.subtitles);
  }

  // Reads new inputs at once, so that the next answer comes as fast as the others.
  void read(const std::vector<InputInfo>& added, const std::vector<std::string>& subtitles) {
    const Forecast forecast = session_.forecast("?");
    progress_.clear();
    notes_.add(frame_notes(flags_.session, flags_.input.frames, engine_.describe(), added));
    notes_.add(sound_notes(added, subtitles));
    notes_.add(forecast.changes);
    notes_.add(forecast.warnings);
    if (progress_.shown()) remark("{}\n", forecast_line(forecast));
    progress_.expect(expected_stages(forecast, 0));
    const double offset = now();
    try {
      const Answer read = session_.prepare(interrupts_.renew());
      progress_.clear();
      trace_.add(read.spans, offset);
      warn(read);
      last_ = read;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::cancelled || Interrupts::asked_to_end()) throw;
      progress_.clear();
      remark("stopped; the next question will read the video\n");
    }
  }

  // What was said of this video once is not said again with every answer.
  void warn(const Answer& answer) {
    for (const std::string& warning : notes_.unsaid(answer.warnings)) {
      complain("warning: " + warning);
      notes_.remember(warning);
    }
    const std::string cut = flags_.quiet ? "" : cut_note(answer);
    if (!cut.empty()) complain("note: " + cut);
  }

  void answer(const std::string& question) {
    AnswerOptions options = flags_.answer;
    options.cancel = interrupts_.renew();
    const double offset = now();
    bool shown = false;
    try {
      last_ = session_.ask(question, options, [&](std::string_view piece) {
        progress_.clear();
        show(piece);
        shown = true;
      });
      progress_.clear();
      fmt::print("\n");
      warn(last_);
      if (!flags_.quiet) {
        std::fflush(stdout);
        remark("{}", drafted_line(last_));
      }
      trace_.add(last_.spans, offset);
      said_.emplace_back(question, last_.text);
    } catch (const Error& error) {
      if (std::ferror(stdout) != 0) throw;  // nobody would see further answers
      if (shown) fmt::print("\n");
      if (error.kind() == ErrorKind::cancelled) {
        progress_.clear();
        remark("stopped; the conversation is as it was before this question\n");
      } else {
        tell(error);
      }
    }
  }

  // False where that was the end.
  bool obey(const std::string& line) {
    try {
      const TypedCommand typed = parse_chat_command(line);
      switch (typed.command) {
        case ChatCommand::quit:
          return false;
        case ChatCommand::help:
          fmt::print("{}", chat_help());
          break;
        case ChatCommand::add:
          add(typed.file);
          break;
        case ChatCommand::save:
          save(typed.file);
          break;
        case ChatCommand::evidence:
          evidence(typed.file);
          break;
        case ChatCommand::stats:
          stats();
          break;
        case ChatCommand::clear:
          session_.clear();
          said_.clear();
          fmt::print("the conversation is forgotten\n");
          break;
      }
    } catch (const Error& error) {
      if (std::ferror(stdout) != 0) throw;
      tell(error);
    }
    return true;
  }

  // Frames are chosen as for the others; subtitles were named for those.
  void add(const std::string& file) {
    InputOptions options = flags_.input;
    options.cancel = interrupts_.renew();
    const InputInfo added = session_.add(input_or_demo(file), options);
    read({added}, {});
    fmt::print("{}: {} frame{}, {} tokens\n", added.source, added.times.size(),
               added.times.size() == 1 ? "" : "s", added.tokens);
  }

  void save(const std::string& file) {
    if (file.ends_with(".kinora")) {
      const MemoryFile saved = session_.save(file, interrupts_.renew());
      progress_.clear();
      enter_in_library(saved);
      fmt::print("{} holds what was read, {}\n", file, human_bytes(saved.bytes));
      return;
    }
    std::string text = fmt::format("# {}\n", model_title(flags_.engine.model));
    for (const InputInfo& input : session_.inputs()) text += fmt::format("\n- {}\n", input.source);
    for (const auto& [question, answer] : said_) {
      text += fmt::format("\n**{}**\n\n{}\n", question, answer);
    }
    real_files().write(file, text);
    fmt::print("{} holds {} question{} and answers\n", file, said_.size(),
               said_.size() == 1 ? "" : "s");
  }

  // Draws the frames where a file is named.
  void evidence(const std::string& file) {
    const std::vector<InputInfo> inputs = session_.inputs();
    const std::string text = evidence_text(last_.evidence, inputs);
    fmt::print("{}\n", text.empty() ? "the last answer rests on no frame of a video" : text);
    if (file.empty() || text.empty()) return;
    draw_evidence(file, last_.evidence, inputs, interrupts_.renew());
    fmt::print("drawn in {}\n", file);
  }

  void stats() const {
    for (const InputInfo& input : session_.inputs()) {
      fmt::print("{}: {} frames of {}×{}, {} tokens\n", input.source, input.times.size(),
                 input.width, input.height, input.tokens);
    }
    fmt::print("{} answers, {} of keys and values, peak memory {}\n", said_.size(),
               human_bytes(last_.row_bytes), human_bytes(peak_memory()));
    fmt::print("last: {}\n", timing_line(last_, engine_.describe().load_seconds, 0));
    if (last_.draft) {
      const auto tokens = static_cast<int64_t>(last_.ids.size());
      fmt::print("{}\n", draft_text(*last_.draft, tokens, last_.timings.generate));
    }
  }

  SessionFlags& flags_;
  Interrupts& interrupts_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  TraceFile trace_;
  TerminalProgress progress_;
  Engine engine_;
  std::vector<std::string> sources_;
  Session session_;
  Notes notes_{true};
  Answer last_;
  std::vector<std::pair<std::string, std::string>> said_;  // questions and answers
};

}  // namespace

void add_chat(CommandLine& line) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* command =
      line.app.add_subcommand("chat", "Ask many questions about videos that are read once");
  command
      ->add_option(
          "inputs", flags->sources,
          "Videos and pictures: any number of files, URLs or folders; 'demo' is the clip that "
          "comes with kinora; a saved memory may stand first; none for a talk without")
      ->type_name("INPUT…");
  flags->flags.add_to(*command);
  command->footer(
      "Examples:\n"
      "  kinora chat talk.mp4 -m DIR\n"
      "  kinora chat demo\n"
      "  printf 'What happens?\\nAnd then?\\n' | kinora chat demo -q\n\n"
      "In a pipe every line is a question. /help lists the commands.");
  command->callback([flags, &line] {
    line.action = [flags, &line] {
      flags->flags.follow_memory(flags->sources);
      flags->flags.resolve();
      Notes(true).add(bundled_note(flags->flags.engine.model, flags->sources));
      return Chat(*flags, line.interrupts).run();
    };
  });
}

}  // namespace kinora::cli
