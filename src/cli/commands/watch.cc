#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <kinora/session.h>

#include "base/error.h"
#include "cli/answer_text.h"
#include "cli/bundled.h"
#include "cli/checks.h"
#include "cli/command_line.h"
#include "cli/error_text.h"
#include "cli/evidence_sheet.h"
#include "cli/library_entry.h"
#include "cli/notes.h"
#include "cli/session_flags.h"
#include "cli/terminal/output.h"
#include "cli/terminal/terminal.h"
#include "cli/video_flags.h"
#include "cli/watch/ready_lines.h"
#include "cli/watch/watch_source.h"

namespace kinora::cli {
namespace {

struct WatchFlags {
  std::string source;
  SessionFlags flags;
  std::string speed = "1";
  std::vector<std::string> every;  // period, question; any number of pairs
  std::string save;
  int64_t tries = -1;
  bool json = false;
};

constexpr int idle_milliseconds = 20;

constexpr const char* watch_help =
    "Type a question and press Enter: it is about everything seen so far.\n"
    "  /status     how far the source has come, what was left out, and the memory of its rows\n"
    "  /save FILE  write what was seen so far, for kinora ask FILE\n"
    "  /clear      forget the conversation\n"
    "  /help       this list\n"
    "  /quit       end (as does Ctrl-C)\n"
    "Ctrl-C stops an answer.\n";

double parse_period(const std::string& text) {
  if (const double seconds = parse_time(text); seconds > 0 && seconds < 1e9) return seconds;
  throw Error(ErrorKind::usage, "--every " + text + ": must be above 0");
}

double parse_speed(const std::string& text) {
  if (text == "max") return 0;
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc() || after != end || !(number > 0) || !(number < 1e6)) {
    throw Error(ErrorKind::usage, "'" + text + "' is not a speed; write 1, 2.5 or max");
  }
  return number;
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  return fmt::format("{:02}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

// A question that asks itself.
struct Standing {
  double period = 0;  // seconds of the video
  std::string question;
  double due = 0;
  double asked = -1;  // how far the video was when it was last asked
  std::string said;   // the last answer that was printed
};

class Watch {
 public:
  Watch(WatchFlags& watch, Interrupts& interrupts)
      : watch_(watch),
        flags_(watch.flags),
        interrupts_(interrupts),
        lines_wanted_(watch.source != "-"),
        engine_(flags_.engine),
        session_(engine_, flags_.session),
        source_(session_, watch.source, watch.tries, events()) {
    for (size_t i = 0; i + 1 < watch.every.size(); i += 2) {
      Standing standing;
      standing.period = standing.due = parse_period(watch.every[i]);
      standing.question = watch.every[i + 1];
      standing_.push_back(standing);
    }
  }

  int run() {
    InputOptions input = flags_.input;
    const bool file = watch_.source.find("://") == std::string::npos && watch_.source != "-";
    input.speed = file ? parse_speed(watch_.speed) : 0;
    // Cameras do not wait, nor does what is played like one. Pipes, and what is fetched, do.
    input.drops = may_come_back(watch_.source) || input.speed > 0;
    input.cancel = interrupts_.token();
    const InputInfo opened = source_.open(input);
    for (const std::string& note : sound_notes({opened}, {})) tell("note", note);
    if (!flags_.quiet && !watch_.json && ::isatty(STDIN_FILENO) == 1 && lines_wanted_) {
      fmt::print("watching {}. /help lists the commands.\n", watch_.source);
    }
    token_ = &interrupts_.renew();
    std::exception_ptr failure;
    while (!token_->cancelled() && !Interrupts::asked_to_end() && !quit_) {
      bool busy = false;
      try {
        busy = source_.step(*token_);
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::cancelled) break;
        // What came can still be asked about.
        failure = std::current_exception();
        tell("error", error_text(error));
      }
      if (source_.frames() > 0) {
        for (const std::string& question : std::exchange(early_, {})) answer_line(question);
      }
      ask_standing();
      if (lines_wanted_ && !lines_.ended()) {
        if (const auto line = lines_.next(busy ? 0 : idle_milliseconds)) take_line(*line);
      } else if (!busy) {
        if (source_.ended()) break;
        ::usleep(idle_milliseconds * 1000);
      }
    }
    if (source_.dropped() > 0) {
      tell("note", fmt::format("{} frames were left out, because they came faster than they could "
                               "be read",
                               source_.dropped()));
    }
    if (!watch_.save.empty() && source_.frames() > 0) save(watch_.save);
    if (failure != nullptr && source_.frames() == 0) std::rethrow_exception(failure);
    return failure != nullptr ? exit_code(ErrorKind::network) : 0;
  }

 private:
  WatchEvents events() {
    WatchEvents events;
    events.broke = [this](const std::string& why, double pause) {
      tell("broke", fmt::format("{}; trying {} again in {:g} s", why, watch_.source, pause));
    };
    events.back = [this](double seconds) {
      tell("back", fmt::format("{} is back after {}", watch_.source, human_seconds(seconds)));
    };
    events.warn = [this](const std::string& text) { tell("warning", text); };
    return events;
  }

  void print_json(const nlohmann::json& line) const {
    fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    std::fflush(stdout);
  }

  void tell(const char* event, const std::string& text) const {
    if (watch_.json) {
      print_json({{"event", event}, {"time", source_.until()}, {"text", text}});
    } else if (!flags_.quiet || std::string_view(event) == "error") {
      complain(text);
    }
  }

  // Nothing where it was stopped or failed, which is said.
  std::optional<Answer> answer(const std::string& question,
                               const std::function<void(std::string_view)>& on_piece) {
    AnswerOptions options = flags_.answer;
    options.cancel = interrupts_.renew();
    std::optional<Answer> answered;
    try {
      answered = session_.ask(question, options, on_piece);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::cancelled) {
        tell("stopped", "stopped; the conversation is as it was before this question");
      } else {
        tell("error", error_text(error));
      }
    }
    token_ = &interrupts_.renew();  // Ctrl-C stopped the answer, not the watch
    return answered;
  }

  void answer_line(const std::string& question) {
    const bool stream = !watch_.json;
    const double seen = source_.until();
    const auto answered = answer(question, [&](std::string_view piece) {
      if (!stream) return;
      std::fwrite(piece.data(), 1, piece.size(), stdout);
      std::fflush(stdout);
    });
    if (!answered) return;
    if (stream) {
      fmt::print("\n");
      std::fflush(stdout);
      if (const std::string cut = cut_note(*answered); !cut.empty()) tell("note", cut);
      const std::string evidence = evidence_text(answered->evidence, session_.inputs());
      if (flags_.quiet) return;
      if (!evidence.empty()) remark("{}\n", evidence);
      remark("{}", drafted_line(*answered));
      return;
    }
    print_answer(question, *answered, seen);
  }

  void print_answer(const std::string& question, const Answer& answered, double seen) const {
    nlohmann::json spans = nlohmann::json::array();
    for (const EvidenceSpan& span : answered.evidence) {
      spans.push_back({{"start", span.start}, {"end", span.end}, {"share", span.share}});
    }
    std::vector<std::string> warnings = answered.warnings;
    if (const std::string cut = cut_note(answered); !cut.empty()) warnings.push_back(cut);
    print_json({{"event", "answer"},
                {"time", seen},
                {"question", question},
                {"answer", answered.text},
                {"evidence", spans},
                {"first_token", answered.timings.first_token},
                {"draft", draft_json(answered)},
                {"warnings", warnings}});
  }

  // Each of them is asked by itself, when its time has come and once more at the end.
  void ask_standing() {
    for (Standing& standing : standing_) {
      const double seen = source_.until();
      if (source_.frames() == 0 || seen == standing.asked) continue;
      if (seen < standing.due && !source_.ended()) continue;
      while (standing.due <= seen) standing.due += standing.period;
      standing.asked = seen;
      session_.clear();
      const auto answered = answer(standing.question, nullptr);
      session_.clear();
      if (!answered || answered->text == standing.said) continue;
      standing.said = answered->text;
      if (watch_.json) {
        print_answer(standing.question, *answered, seen);
        continue;
      }
      fmt::print("[{}] {}\n", clock_text(seen), answered->text);
      std::fflush(stdout);
      if (!flags_.quiet) remark("{}", drafted_line(*answered));
    }
  }

  void take_line(const std::string& line) {
    const size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string::npos) return;
    const std::string text = line.substr(begin, line.find_last_not_of(" \t") + 1 - begin);
    if (text[0] != '/') {
      if (source_.frames() == 0) {
        early_.push_back(text);
      } else {
        answer_line(text);
      }
    } else if (text == "/quit" || text == "/exit") {
      quit_ = true;
    } else if (text == "/help") {
      fmt::print("{}", watch_help);
    } else if (text == "/clear") {
      session_.clear();
    } else if (text == "/status") {
      status();
    } else if (text.starts_with("/save ")) {
      save(text.substr(text.find_first_not_of(' ', 6)));
    } else {
      tell("error", fmt::format("there is no command {}; /help lists them", text));
    }
  }

  void status() const {
    const HeldRows rows = session_.held();
    const std::string text =
        fmt::format("{}: {} seen, {} frames, {} left out, {} breaks, {} of rows{}{}", watch_.source,
                    clock_text(source_.until()), source_.frames(), source_.dropped(),
                    source_.breaks(), human_bytes(rows.device + rows.host),
                    rows.disk > 0 ? fmt::format(" and {} in a file", human_bytes(rows.disk)) : "",
                    source_.ended() ? "; it has ended" : "");
    if (!watch_.json) return tell("status", text);
    print_json(
        {{"event", "status"},
         {"time", source_.until()},
         {"text", text},
         {"frames", source_.frames()},
         {"left_out", source_.dropped()},
         {"breaks", source_.breaks()},
         {"ended", source_.ended()},
         {"row_bytes", {{"device", rows.device}, {"host", rows.host}, {"disk", rows.disk}}}});
  }

  void save(const std::string& path) {
    try {
      const MemoryFile file = session_.save(path);
      enter_in_library(file);
      tell("saved", fmt::format("{} holds what was seen until {}, {}", path,
                                clock_text(source_.until()), human_bytes(file.bytes)));
    } catch (const Error& error) {
      tell("error", error_text(error));
    }
  }

  WatchFlags& watch_;
  SessionFlags& flags_;
  Interrupts& interrupts_;
  const bool lines_wanted_;  // standard input is not the video itself
  Engine engine_;
  Session session_;
  WatchSource source_;
  ReadyLines lines_;
  std::vector<Standing> standing_;
  std::vector<std::string> early_;      // asked before anything was seen
  const CancelToken* token_ = nullptr;  // of the watch itself
  bool quit_ = false;
};

}  // namespace

void add_watch(CommandLine& line) {
  auto flags = std::make_shared<WatchFlags>();
  // A stream has no end that memory could be planned for, and frames should be seen when they come.
  flags->flags.session.memory = "mosaic:window=8192";
  flags->flags.session.frames_per_group = 2;
  CLI::App* command =
      line.app.add_subcommand("watch", "Ask about a camera, a stream or a pipe while it runs");
  command
      ->add_option("source", flags->source,
                   "An address (rtsp://, http://, …), a camera (/dev/video0), a pipe or -, or a "
                   "file, which is played as if it were filmed now")
      ->required()
      ->type_name("SOURCE");
  command
      ->add_option("--every", flags->every,
                   "Ask this question again and again, after so much of the video each time, and "
                   "print an answer only when it has changed (may be repeated)")
      ->type_name("PERIOD QUESTION")
      ->expected(2)
      ->take_all();
  command
      ->add_option(
          "--speed", flags->speed,
          "How fast a file is played: 1 is as it was filmed, max as fast as it can be read")
      ->capture_default_str()
      ->type_name("SPEED");
  command->add_option("--save", flags->save, "At the end write what was seen, for kinora ask FILE")
      ->type_name("FILE.kinora");
  command
      ->add_option("--tries", flags->tries,
                   "Attempts to reach a source again that broke off; default: no limit")
      ->check(whole(0));
  command->add_flag("--json", flags->json, "Print one JSON object per line");
  flags->flags.add_to(*command);
  command->footer(
      "Examples:\n"
      "  kinora watch rtsp://camera/1 -m DIR\n"
      "  kinora watch rtsp://camera/1 -m DIR --every 30s \"Is the door open?\" < /dev/null\n"
      "  ffmpeg -i … -f matroska - | kinora watch - --every 1min \"What happens?\"\n"
      "  kinora watch talk.mp4 --speed max --save talk.kinora\n\n"
      "Every line that is typed is a question about all that was seen so far; the source goes on\n"
      "meanwhile. A question of --every begins a conversation of its own. When frames come faster\n"
      "than they can be read, those that waited longest are left out, and that is said. A source\n"
      "that breaks off is tried again after 1, 2, 4 … 60 s.");
  command->callback([flags, &line] {
    line.action = [flags, &line] {
      for (size_t i = 0; i + 1 < flags->every.size(); i += 2) parse_period(flags->every[i]);
      parse_speed(flags->speed);
      flags->source = input_or_demo(flags->source);
      flags->flags.resolve();
      if (!flags->json) Notes(true).add(bundled_note(flags->flags.engine.model, {flags->source}));
      return Watch(*flags, line.interrupts).run();
    };
  });
}

}  // namespace kinora::cli
