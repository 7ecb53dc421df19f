#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include <kinora/session.h>

#include "base/error.h"
#include "cli/answer_text.h"
#include "cli/bundled.h"
#include "cli/command_line.h"
#include "cli/library_entry.h"
#include "cli/notes.h"
#include "cli/session_flags.h"
#include "cli/terminal/output.h"
#include "cli/terminal/terminal.h"
#ifdef KINORA_HAS_CATALOGUE
#include "catalogue/catalogue.h"
#endif

namespace kinora::cli {
namespace {

struct IndexFlags {
  std::vector<std::string> sources;
  SessionFlags flags;
  std::string out;
  bool again = false;
  bool json = false;
};

// Beside nothing else of the person's: in the folder they are in.
std::string default_place(const std::string& source) {
  const std::string name = std::filesystem::path(source).filename().replace_extension().string();
  return (name.empty() || source == "-" ? "memory" : name) + ".kinora";
}

// A file that holds just this already.
std::optional<MemoryFile> known(const Session& session, const IndexFlags& flags,
                                const std::string& out) {
  if (flags.again) return std::nullopt;
  const std::string key = session.memory_key();
  if (key.empty()) return std::nullopt;
  std::vector<std::string> places{out};
#ifdef KINORA_HAS_CATALOGUE
  if (const std::string place = default_catalogue(); flags.out.empty() && !place.empty()) {
    try {
      if (const auto entry = Catalogue(place).find_key(key)) places.push_back(entry->path);
    } catch (const Error&) {
      places.resize(1);  // said when the new file is entered
    }
  }
#endif
  for (const std::string& place : places) {
    try {
      if (!is_memory_file(place)) continue;
      MemoryFile file = describe_memory(place);
      if (file.key == key) return file;
    } catch (const Error&) {
      continue;  // damaged: it is made again
    }
  }
  return std::nullopt;
}

void print(const IndexFlags& flags, const MemoryFile& file, double seconds, bool fresh,
           const std::vector<std::string>& warnings) {
  int64_t frames = 0;
  for (const MemoryFileInput& input : file.inputs) frames += input.frames;
  if (flags.json) {
    nlohmann::json out = {{"path", file.path},     {"key", file.key},
                          {"bytes", file.bytes},   {"frames", frames},
                          {"tokens", file.tokens}, {"model", file.model},
                          {"memory", file.memory}, {"token_choice", file.token_choice},
                          {"retain", file.retain}, {"fresh", fresh},
                          {"seconds", seconds},    {"warnings", warnings}};
    fmt::print("{}\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    return;
  }
  fmt::print("{}\n", file.path);
  if (flags.flags.quiet) return;
  if (!fresh) {
    remark("{} was read already; --again reads it once more\n", file.inputs.front().source);
    return;
  }
  remark("{} frames and {} tokens in {}; {} on the disk\n", frames, file.tokens,
         human_seconds(seconds), human_bytes(file.bytes));
}

int index(IndexFlags& index_flags, const CancelToken& cancel) {
  SessionFlags& flags = index_flags.flags;
  flags.resolve();
  const std::string out =
      index_flags.out.empty() ? default_place(index_flags.sources.front()) : index_flags.out;
  for (const std::string& source : index_flags.sources) {
    std::error_code ignored;
    if (std::filesystem::equivalent(source, out, ignored)) {
      throw Error(ErrorKind::usage, out + " is the video itself; give another name with -o");
    }
  }
  TerminalProgress progress(flags.quiet || index_flags.json);
  progress.update("loading", 0, 0);
  const Engine engine(flags.engine);
  flags.input.cancel = cancel;
  flags.session.progress = [&](std::string_view stage, int64_t done, int64_t total) {
    progress.update(stage, done, total);
  };
  Session session(engine, flags.session);
  const auto began = std::chrono::steady_clock::now();
  const std::vector<InputInfo> added = flags.add_inputs(session, index_flags.sources);
  if (const std::optional<MemoryFile> file = known(session, index_flags, out)) {
    progress.clear();
    print(index_flags, *file, 0, false, {});
    return 0;
  }
  const Forecast forecast = session.forecast("?");
  progress.clear();
  Notes notes(!index_flags.json);
  notes.add(frame_notes(flags.session, flags.input.frames, engine.describe(), added));
  notes.add(sound_notes(added, flags.subtitles));
  notes.add(forecast.changes);
  notes.add(forecast.warnings);
  if (progress.shown()) remark("{}\n", forecast_line(forecast));
  progress.expect(expected_stages(forecast, 0));
  const Answer read = session.prepare(cancel);
  progress.clear();
  if (!index_flags.json) {
    for (const std::string& warning : notes.unsaid(read.warnings)) {
      complain("warning: " + warning);
    }
  }
  const MemoryFile file = session.save(out, cancel);
  progress.clear();
  enter_in_library(file);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
  print(index_flags, file, seconds.count(), true, notes.with(read.warnings));
  return 0;
}

}  // namespace

void add_index(CommandLine& line) {
  auto flags = std::make_shared<IndexFlags>();
  CLI::App* command = line.app.add_subcommand(
      "index", "Read videos once and keep what was read in a file, to be asked any time later");
  command
      ->add_option("inputs", flags->sources,
                   "Videos and pictures: any number of files, URLs or folders; 'demo' is the clip "
                   "that comes with kinora")
      ->required()
      ->type_name("INPUT…");
  command->add_option("-o,--output", flags->out, "The file; default: the first input's NAME.kinora")
      ->type_name("FILE.kinora");
  command->add_flag("--again", flags->again, "Read it even if a file holds the same already");
  command->add_flag("--json", flags->json, "Print one JSON object");
  flags->flags.add_indexing_to(*command);
  command->footer(
      "Examples:\n"
      "  kinora index talk.mp4 -o talk.kinora\n"
      "  kinora ask talk.kinora \"When is the second chart shown?\"\n"
      "  kinora index film.mkv -m DIR --memory mosaic --fps 1\n\n"
      "The file serves the model that made it. A break at any moment leaves what the file was\n"
      "before. 'kinora library' lists what was indexed; docs/memory-files.md has the format.");
  command->callback([flags, &line] {
    line.action = [flags, &line] { return index(*flags, line.interrupts.token()); };
  });
}

}  // namespace kinora::cli
