#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attention/policies/head_table.h"
#include "attention/search/search.h"
#include "base/error.h"
#include "base/files/content_key.h"
#include "cli/checks.h"
#include "cli/command_line.h"
#include "cli/notes.h"
#include "cli/session_flags.h"
#include "cli/terminal/terminal.h"
#include "cli/tune_start.h"
#include "engine/attention_choice.h"
#include "engine/session_state.h"
#include "eval/dataset.h"
#include "eval/score.h"

namespace kinora::cli {
namespace {

struct TuneFlags {
  SessionFlags session;
  std::vector<std::string> sources;
  std::string question = "Describe what happens.";
  std::string output;
  int64_t prompts = 1;  // of a set
  TuneStart start;
  bool no_boundaries = false;
  int64_t last = default_dense_last;
  bool json = false;
};

// The given file, else the model's directory, else the user's data directory if that cannot be
// written.
std::string output_path(const TuneFlags& flags) {
  if (!flags.output.empty()) return flags.output;
  const auto places = head_table_places(flags.session.engine.model);
  std::error_code error;
  for (const std::string& place : places) {
    const auto directory = std::filesystem::path(place).parent_path();
    std::filesystem::create_directories(directory, error);
    const auto permissions = std::filesystem::status(directory, error).permissions();
    if (!error &&
        (permissions & std::filesystem::perms::owner_write) != std::filesystem::perms::none) {
      return place;
    }
  }
  return places.front();
}

void summarise(const HeadTable& table, const std::string& path, double seconds) {
  std::map<std::string, int> kinds, patterns;
  double recall = 0, error = 0, flops = 0, index = 0, time = 0;
  int regions = 0;
  for (const auto& head : table.heads) {
    std::string name = head->patterns.front().spec.kind->name;
    if (head->boundary != Boundary::none) {
      name = fmt::format("{} boundary", boundary_name(head->boundary));
    }
    ++kinds[name];
    for (const RegionPattern& region : head->patterns) {
      ++patterns[region.spec.kind->name];
      ++regions;
    }
    recall += head->recall;
    error += head->error;
    flops += head->flops;
    index += head->index;
    time += head->time;
  }
  const auto count = static_cast<double>(table.heads.size());
  fmt::print("{}: {} heads on {} tokens in {}\n", path, table.heads.size(), table.sample_tokens,
             human_seconds(seconds));
  for (const auto& [name, heads] : kinds) fmt::print("  {:<18} {} heads\n", name, heads);
  std::vector<std::string> shares;
  for (const auto& [name, times] : patterns) shares.push_back(fmt::format("{} {}", times, name));
  fmt::print("  {} regions: {}\n", regions, fmt::join(shares, ", "));
  fmt::print("  mean recall {:.3f}, mean output error {:.3f}\n", recall / count, error / count);
  fmt::print("  budget of a head: {:.1f} % of {}\n", 100 * table.budget,
             cost_unit_text(table.budget_unit));
  const CostUnit timed =
      parse_cost_unit(table.budget_unit) == CostUnit::gpu ? CostUnit::gpu : CostUnit::cpu;
  fmt::print("  mean cost: {:.1f} % of {}, {:.1f} % more for finding lines; about {:.1f} % of {}\n",
             100 * flops / count, cost_unit_text(cost_unit_name(CostUnit::flops)),
             100 * index / count, 100 * time / count, cost_unit_text(cost_unit_name(timed)));
}

bool is_set(const TuneFlags& flags) {
  return flags.sources.size() == 1 && flags.sources.front().ends_with(".jsonl");
}

// The first prompts of a set that differ, text between the videos included. Empty: the sample is no
// set.
std::vector<EvalItem> prompts_of(const TuneFlags& flags, const CancelToken& cancel) {
  std::vector<EvalItem> prompts;
  if (!is_set(flags)) {
    if (flags.prompts > 1) {
      throw Error(ErrorKind::usage, "--prompts counts the prompts of a set; the sample is a video");
    }
    return prompts;
  }
  const auto same = [](const EvalItem& a, const EvalItem& b) {
    return std::equal(a.parts.begin(), a.parts.end(), b.parts.begin(), b.parts.end(),
                      [](const EvalPart& x, const EvalPart& y) {
                        return x.source == y.source && x.text == y.text;
                      });
  };
  for (EvalItem& item : read_eval_data(real_files(), flags.sources.front(), cancel).items) {
    if (std::ssize(prompts) == flags.prompts) break;
    if (std::none_of(prompts.begin(), prompts.end(),
                     [&](const EvalItem& other) { return same(item, other); })) {
      prompts.push_back(std::move(item));
    }
  }
  if (std::ssize(prompts) < flags.prompts) {
    throw Error(ErrorKind::usage, fmt::format("{}: has {} prompts, not {}", flags.sources.front(),
                                              prompts.size(), flags.prompts));
  }
  return prompts;
}

// Adds the inputs of the sample, or of a prompt of a set, and returns the prompt.
std::vector<QuestionPart> open_sample(SessionFlags flags, const TuneFlags& tune, Session& session,
                                      const EvalItem* item) {
  if (item == nullptr) {
    std::vector<QuestionPart> parts(flags.add_inputs(session, tune.sources).size());
    parts.push_back({tune.question});
    return parts;
  }
  FrameChoice& frames = flags.input.frames;
  if (frames.way == FrameChoice::Way::model) frames = item->frames.within(frames.start, frames.end);
  std::vector<QuestionPart> parts;
  std::vector<std::string> sources;
  for (const EvalPart& part : item->parts) {
    if (!part.source.empty()) sources.push_back(part.source);
    parts.push_back(part.source.empty() ? QuestionPart{part.text} : QuestionPart{});
  }
  if (!sources.empty()) flags.add_inputs(session, sources);
  parts.push_back({eval_prompt(*item)});
  return parts;
}

// The search while samples are read, one after another.
class Tuning {
 public:
  Tuning(TuneFlags& flags, const CancelToken& cancel)
      : flags_(flags),
        cancel_(cancel),
        progress_(flags.json || flags.session.quiet),
        notes_(!flags.json),
        prompts_(prompts_of(flags, cancel)),
        path_(output_path(flags)) {
    const std::string directory = std::filesystem::absolute(path_).parent_path().string();
    if (!real_files().is_directory(directory)) {  // better now than after the search
      throw Error(ErrorKind::not_found, directory + ": no such directory; choose another --output");
    }
    flags_.session.input.cancel = cancel;
    SessionOptions& reading = flags_.session.session;
    reading.max_group_tokens = 0;  // the search looks at the whole prompt at once
    reading.progress = [this](std::string_view stage, int64_t done, int64_t total) {
      progress_.update(stage, done, total);
    };
    options_.cancel = cancel;
    if (flags.start.budget) options_.dense_share = *flags.start.budget / 100;
    options_.unit = parse_cost_unit(flags.start.unit);
    options_.dense_last = flags.last;
    if (flags.no_boundaries) options_.boundaries = {Boundary::none};
  }

  const std::string& path() const { return path_; }
  std::vector<std::string> notes() const { return notes_.with({}); }

  HeadTable run(const Engine& engine) {
    if (prompts_.size() < 2) {
      return search(engine, prompts_.empty() ? nullptr : &prompts_.front(), path_, false);
    }
    // A table by each prompt, next to the one they will become; then all of them on every prompt.
    std::vector<HeadTable> tables;
    std::vector<std::string> paths;
    for (const EvalItem& prompt : prompts_) {
      paths.push_back(fmt::format("{}.{}", path_, paths.size() + 1));
      tables.push_back(search(engine, &prompt, paths.back(), true));
    }
    TableTrial trial(tables, options_);
    for (size_t i = 0; i < prompts_.size(); ++i) {
      progress_.update("trial", static_cast<int64_t>(i), std::ssize(prompts_));
      Session session(engine, flags_.session.session);
      read(session, open(session, &prompts_[i]), trial);
    }
    HeadTable table = trial.best();
    table.origin.reset();
    real_files().write(path_, to_json(table));
    for (const std::string& part : paths) std::filesystem::remove(part);
    progress_.clear();
    return table;
  }

 private:
  std::vector<QuestionPart> open(Session& session, const EvalItem* item) {
    std::vector<QuestionPart> prompt = open_sample(flags_.session, flags_, session, item);
    if (const int64_t tokens = SessionAccess::state(session).frame_tokens(); tokens > 0) {
      options_.frame_stride = static_cast<int32_t>(tokens);
    }
    return prompt;
  }

  void read(Session& session, const std::vector<QuestionPart>& prompt,
            AttentionObserver& observer) {
    SessionAccess::state(session).observe(&observer);
    AnswerOptions nothing;
    nothing.max_tokens = 0;
    nothing.cancel = cancel_;
    session.ask(prompt, nothing);
  }

  // Tells samples apart, and what of them is searched.
  std::string key_of(const SessionState& state, const std::vector<QuestionPart>& prompt) const {
    ContentKey key("kinora tune 1");
    const auto add = [&](std::string_view text) { key.add(text.data(), text.size()); };
    const std::string looked_at = state.memory_key();  // and the model
    add(looked_at);
    if (looked_at.empty()) {  // what is behind a name is not known
      for (const VisualInput& input : state.inputs()) add(input.source);
    }
    for (const QuestionPart& part : prompt) add(part.text ? "text " + *part.text : "input");
    key.add(flags_.last);
    key.add(int64_t{flags_.no_boundaries});
    return key.text();
  }

  // `part`: of a search on several prompts. It stays what it was begun with, so that the same
  // command takes it as it is.
  HeadTable search(const Engine& engine, const EvalItem* item, const std::string& path, bool part) {
    Session session(engine, flags_.session.session);
    const SessionState& state = SessionAccess::state(session);
    // What cannot go on is refused before anything is read.
    HeadTable table = start_table(flags_.start, path, expected_table(state.model().info()), part);
    const std::vector<QuestionPart> prompt = open(session, item);
    const SearchOrigin origin{flags_.start.budget_given(), key_of(state, prompt)};
    if (table.origin && *table.origin != origin) {
      if (!table.complete()) {
        throw Error(ErrorKind::usage,
                    fmt::format("{}: holds an unfinished search on another sample, or with another "
                                "--last or --no-boundaries; give those, --restart, or another "
                                "--output",
                                path));
      }
      table = start_table(flags_.start, path, expected_table(state.model().info()), false);
    }
    if (table.complete()) return table;
    table.origin = origin;
    const auto save = [&] {
      if (!part && table.complete()) table.origin.reset();
      real_files().write(path, to_json(table));
    };
    std::vector<ContentPart> content;
    for (const QuestionPart& one : prompt) {
      content.push_back(one.text ? ContentPart{Modality::text, *one.text}
                                 : ContentPart{Modality::video, ""});
    }
    progress_.clear();
    notes_.add(short_sample_note(state.forecast(content).tokens));
    int64_t found = 0;
    auto saved = std::chrono::steady_clock::now();
    PatternSearch search(table, options_, [&](int, int, const HeadChoice&) {
      ++found;
      const int64_t total = static_cast<int64_t>(table.heads.size());
      const int64_t done = std::count_if(table.heads.begin(), table.heads.end(),
                                         [](const auto& entry) { return entry.has_value(); });
      progress_.update("tune", done, total);
      const auto now = std::chrono::steady_clock::now();
      if (done == total || now - saved > std::chrono::seconds(10)) {
        save();
        saved = now;
      }
    });
    try {
      read(session, prompt, search);
    } catch (...) {
      // What was found is kept; the next call goes on from here.
      if (found > 0) save();
      throw;
    }
    progress_.clear();
    return table;
  }

  TuneFlags& flags_;
  CancelToken cancel_;
  TerminalProgress progress_;
  Notes notes_;
  std::vector<EvalItem> prompts_;
  std::string path_;
  SearchOptions options_;
};

int tune(TuneFlags& flags, const CancelToken& cancel) {
  flags.session.resolve();
  Tuning tuning(flags, cancel);
  const auto started = std::chrono::steady_clock::now();
  const Engine engine(flags.session.engine);
  const HeadTable table = tuning.run(engine);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  if (flags.json) {
    auto out = nlohmann::ordered_json::parse(to_json(table));
    out["warnings"] = tuning.notes();
    fmt::print("{}\n", out.dump(2));
  } else {
    summarise(table, tuning.path(), seconds);
  }
  return 0;
}

}  // namespace

void add_tune(CommandLine& line) {
  auto flags = std::make_shared<TuneFlags>();
  CLI::App* command = line.app.add_subcommand(
      "tune", "Search the sparse attention pattern of every head (for --attention mminference)");
  command
      ->add_option("--sample", flags->sources,
                   "Videos or pictures to search on; one of about 25,000 tokens is enough. Or a "
                   "set (.jsonl, docs/eval.md): its first prompts, text included")
      ->required()
      ->expected(1)
      ->take_all()
      ->type_name("FILE");
  flags->session.add_reading_to(*command, false);
  command->get_option("--model")->required();
  command
      ->add_option(
          "--prompts", flags->prompts,
          "How many prompts of a set are searched on; every head then takes what does best "
          "on all of them")
      ->check(between(1, 1000))
      ->capture_default_str();
  command->add_option("--question", flags->question, "Text after the video")->capture_default_str();
  command->add_option("-o,--output", flags->output,
                      "Table to write; default: kinora-attention.json in the model's directory");
  command
      ->add_option("--budget", flags->start.budget,
                   "What a head may cost over the whole sample, in % of dense attention; default: "
                   "what an A-shape of 1,024 + 4,096 tokens costs, as in the paper")
      ->check(between(1, 100));
  command
      ->add_option("--budget-in", flags->start.unit,
                   "What that is counted in: flops, or the time on a cpu or gpu as counted work "
                   "tells it. No clock is looked at: the same search gives the same table, byte "
                   "for byte where the CPU reads the sample (--device cpu)")
      ->check(one_of(cost_unit_names()))
      ->capture_default_str();
  command
      ->add_option("--last", flags->last,
                   "Tokens of text at the end that will be dense and are not searched; 0: the "
                   "question is searched too, for mminference:last=0")
      ->check(between(0, 1'000'000))
      ->capture_default_str();
  command->add_flag("--no-boundaries", flags->no_boundaries,
                    "Search without regard to modalities, for comparison");
  command->add_flag("--restart", flags->start.restart, "Do not go on from an unfinished table");
  command->add_flag("--json", flags->json, "Print the table too");
  command->footer(
      "Examples:\n"
      "  kinora tune --model Qwen2.5-VL-3B-Instruct --sample talk.mp4 --fps 1\n"
      "  kinora ask long.mp4 \"What happens?\" -m Qwen2.5-VL-3B-Instruct --attention "
      "mminference\n\n"
      "Ctrl-C stops the search; the same command goes on where it stopped.");
  command->callback([flags, &line] {
    line.action = [flags, &line] { return tune(*flags, line.interrupts.token()); };
  });
}

}  // namespace kinora::cli
