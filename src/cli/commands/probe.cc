#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kinora/session.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/answer_text.h"
#include "cli/bundled.h"
#include "cli/command_line.h"
#include "cli/model_name.h"
#include "cli/notes.h"
#include "cli/question_cost.h"
#include "cli/terminal/output.h"
#include "cli/terminal/terminal.h"
#include "cli/video_flags.h"
#include "draw/text.h"
#include "engine/ingest/visual_input.h"
#include "video/shortfall.h"
#include "video/video.h"

namespace kinora::cli {
namespace {

struct ProbeFlags {
  std::string source;
  std::string model;  // empty: published families only
  InputLimits limits;
  bool json = false;
};

nlohmann::json size_json(FrameSize size) {
  return {{"width", size.width}, {"height", size.height}};
}

nlohmann::json as_json(const VideoInfo& info, bool live, const std::vector<QuestionCost>& costs) {
  nlohmann::json cost_list = nlohmann::json::array();
  for (const QuestionCost& cost : costs) {
    nlohmann::json entry = {{"family", cost.family}, {"rule", cost.rule}};
    if (cost.problem.empty()) {
      entry["frames"] = cost.frames;
      entry["size"] = size_json(cost.size);
      entry["tokens"] = cost.tokens;
      entry["row_bytes_7b"] = cost.row_bytes;
    } else {
      entry["problem"] = cost.problem;
    }
    cost_list.push_back(std::move(entry));
  }
  nlohmann::json subtitles = nlohmann::json::array();
  for (const SubtitleTrack& track : info.subtitles) {
    subtitles.push_back(
        {{"language", track.language}, {"codec", track.codec}, {"readable", track.text}});
  }
  return {{"source", info.source},
          {"container", info.container},
          {"codec", info.codec},
          {"pixel_format", info.pixel_format},
          {"bit_depth", info.bit_depth},
          {"color_matrix", info.color_matrix},
          {"color_range", info.color_range},
          {"size", size_json(info.size)},
          {"coded_size", size_json(info.coded_size)},
          {"rotation", info.rotation},
          {"still", info.still},
          {"live", live},
          {"has_audio", info.has_audio},
          {"subtitles", subtitles},
          {"frames", info.frames},
          {"duration", info.duration},
          {"fps", info.fps},
          {"start_offset", info.start_offset},
          {"variable_rate", info.variable_rate},
          {"keyframes", info.keyframes},
          {"keyframe_gap", info.keyframe_gap},
          {"disposable", info.disposable},
          {"hidden", info.hidden},
          {"bytes", info.bytes},
          {"repaired_times", info.repaired_times},
          {"promised_duration", info.promised_duration},
          {"missing", missing_seconds(info, info.promised_duration)},
          {"question_cost", cost_list}};
}

// What a question about this source costs the model that was named.
Forecast model_cost(const ProbeFlags& flags) {
  EngineOptions options;
  options.model = find_model(flags.model);
  const Engine engine(options);
  Session session(engine);
  const InputOptions input;
  session.add(input_or_demo(flags.source), input);
  return session.forecast("What happens?");
}

void print_row(const char* name, const std::string& value) {
  fmt::print("{:<16}{}\n", name, value);
}

void print_video(const VideoInfo& info, bool live) {
  print_row("source", info.source);
  print_row("video", fmt::format("{} in {}{}", info.codec, info.container,
                                 info.has_audio ? ", with sound" : ""));
  std::string size = fmt::format("{}×{}", info.size.width, info.size.height);
  if (info.rotation != 0)
    size += fmt::format(" (stored {}×{}, turned {}° clockwise)", info.coded_size.width,
                        info.coded_size.height, info.rotation);
  print_row("size", size);
  print_row("colour", fmt::format("{}, {} bit, matrix {}, range {}", info.pixel_format,
                                  info.bit_depth, info.color_matrix, info.color_range));
  std::vector<std::string> tracks;
  for (const SubtitleTrack& track : info.subtitles) {
    tracks.push_back(fmt::format("{} ({}{})", track.language, track.codec,
                                 track.text ? "" : ", pictures: not read"));
  }
  if (!tracks.empty()) print_row("subtitles", fmt::format("{}", fmt::join(tracks, ", ")));
  if (info.still) return;
  if (live) {
    print_row("length", "live: not known");
    return;
  }
  print_row("length",
            fmt::format("{}, {} frames, {:.3f} frames a second{}", time_label(info.duration),
                        info.frames, info.fps, info.variable_rate ? " on average (variable)" : ""));
  if (const double missing = missing_seconds(info, info.promised_duration); missing > 0)
    print_row("missing",
              fmt::format("{:.2f} s of the {} that the header promises: the file was cut", missing,
                          time_label(info.promised_duration)));
  if (info.start_offset != 0)
    print_row("starts at", fmt::format("{:.3f} s of the container's clock", info.start_offset));
  if (info.hidden > 0)
    print_row("hidden", fmt::format("{} packets show nothing (edit list or alternate references)",
                                    info.hidden));
  const double spacing =
      info.keyframes > 0 ? info.duration / static_cast<double>(info.keyframes) : info.duration;
  print_row("keyframes", fmt::format("{}: one every {:.2f} s, at most {:.2f} s apart",
                                     info.keyframes, spacing, info.keyframe_gap));
  if (info.frames > 0)
    print_row("skippable", fmt::format("{:.0f} % of the frames are needed by no other frame",
                                       100.0 * static_cast<double>(info.disposable) /
                                           static_cast<double>(info.frames)));
  print_row("data", fmt::format("{}{}", human_bytes(info.bytes),
                                info.duration > 0 ? fmt::format(", {:.0f} kbit/s",
                                                                static_cast<double>(info.bytes) *
                                                                    8 / 1000 / info.duration)
                                                  : ""));
  if (info.repaired_times)
    print_row("note", "the file has no presentation times; the order was recovered");
}

void print_costs(const std::vector<QuestionCost>& costs) {
  fmt::print("\nA question would cost (memory: keys and values of a 7B model in 16 bits)\n");
  fmt::print("  {:<17}{:<30}{:>7}{:>12}{:>9}{:>10}\n", "model family", "looks at", "frames", "size",
             "tokens", "memory");
  for (const QuestionCost& cost : costs) {
    if (!cost.problem.empty()) {
      fmt::print("  {:<17}{:<30}{}\n", cost.family, cost.rule, cost.problem);
      continue;
    }
    fmt::print("  {:<17}{:<30}{:>7}{:>12}{:>9}{:>10}\n", cost.family, cost.rule, cost.frames,
               fmt::format("{}×{}", cost.size.width, cost.size.height), cost.tokens,
               human_bytes(cost.row_bytes));
  }
}

int probe(const ProbeFlags& flags, const CancelToken& cancel) {
  TerminalProgress progress(flags.json);
  OpenOptions open;
  open.limits = video_limits(flags.limits);
  open.cancel = cancel;
  open.progress = &progress;
  open.index_cache = default_index_cache();
  const std::unique_ptr<Video> video = open_video(input_or_demo(flags.source), open);
  const VideoInfo& info = video->info();
  const bool live = video->live();
  const auto costs = live ? std::vector<QuestionCost>{} : question_costs(*video);
  progress.clear();
  if (flags.json) {
    nlohmann::json out = as_json(info, live, costs);
    if (!flags.model.empty()) out["model_cost"] = forecast_json(model_cost(flags));
    fmt::print("{}\n", json_text(out));
    return 0;
  }
  print_video(info, live);
  if (!flags.model.empty()) {
    const Forecast cost = model_cost(flags);
    fmt::print("\nA question to {} would cost\n  {}\n", model_title(find_model(flags.model)),
               forecast_line(cost));
    Notes(true).add(cost.warnings);
  } else if (!costs.empty()) {
    print_costs(costs);
  }
  return 0;
}

}  // namespace

void add_probe(CommandLine& line) {
  auto flags = std::make_shared<ProbeFlags>();
  CLI::App* command = line.app.add_subcommand(
      "probe", "Say what is in a video and what a question about it would cost");
  command->add_option("video", flags->source, "File, URL, folder of pictures, or - for a pipe")
      ->required()
      ->type_name("VIDEO");
  command
      ->add_option("-m,--model", flags->model,
                   "Say what a question costs this model (a name or directory), not the families")
      ->type_name("MODEL");
  add_limit_flags(*command, flags->limits);
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->footer(
      "Examples:\n"
      "  kinora probe talk.mp4\n"
      "  kinora probe talk.mp4 -m Qwen/Qwen2.5-VL-3B-Instruct\n"
      "  kinora probe talk.mp4 --json | jq .frames\n\n"
      "Frames are counted exactly, from the packets; nothing is decoded.");
  command->callback([flags, &line] {
    line.action = [flags, &line] { return probe(*flags, line.interrupts.token()); };
  });
}

}  // namespace kinora::cli
