#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/context.h"
#include "base/error.h"
#include "base/file.h"
#include "cli/bundled.h"
#include "cli/checks.h"
#include "cli/command_line.h"
#include "cli/terminal/output.h"
#include "cli/terminal/terminal.h"
#include "cli/video_flags.h"
#include "draw/contact_sheet.h"
#include "draw/png_file.h"
#include "draw/text.h"
#include "engine/ingest/visual_input.h"
#include "model/families/qwen2_5_vl/frames.h"
#include "ops/resize.h"
#include "video/empty_part.h"
#include "video/shortfall.h"
#include "video/video.h"

namespace kinora::cli {
namespace {

constexpr int64_t thumbnail_side = 256;

struct FramesFlags {
  std::string source;
  FrameChoice choice;
  std::string rule;  // "time" (the default) or "qwen"
  InputLimits limits;
  std::string directory;
  std::string sheet;
  std::string size;
  int64_t max_side = 0;
  std::string filter = "bicubic";
  int columns = 0;
  int threads = 0;
  bool json = false;
  bool quiet = false;
};

// "448x336"; throws a usage error.
FrameSize parse_size(const std::string& text) {
  FrameSize size;
  const char* end = text.data() + text.size();
  const auto [cross, error] = std::from_chars(text.data(), end, size.width);
  if (error == std::errc() && cross != end && *cross == 'x') {
    const auto [after, second] = std::from_chars(cross + 1, end, size.height);
    if (second == std::errc() && after == end && size.width >= 1 && size.height >= 1 &&
        size.width <= 16384 && size.height <= 16384)
      return size;
  }
  throw Error(ErrorKind::usage,
              fmt::format("--size '{}' is not a size; write WIDTHxHEIGHT, each 1 to 16384", text));
}

// The same shape with no side over `limit`; never enlarged.
FrameSize fitted(FrameSize source, int64_t limit) {
  const int64_t longer = std::max(source.width, source.height);
  if (limit <= 0 || longer <= limit) return source;
  const auto shrink = [&](int64_t side) {
    return std::max<int64_t>(1, (2 * side * limit + longer) / (2 * longer));
  };
  return {shrink(source.width), shrink(source.height)};
}

std::string file_name(int64_t index, double time) {
  return fmt::format("frame-{:06}-{:.3f}s.png", index, time);
}

// Takes groups as they come: files in parallel, then the sheet in order.
class FrameWriter {
 public:
  FrameWriter(const FramesFlags& flags, FrameSize frame, int64_t frames, const std::string& title)
      : flags_(flags), pool_(flags.threads), context_(pool_) {
    if (flags.sheet.empty()) return;
    thumbnail_ = flags.directory.empty() ? frame : fitted(frame, thumbnail_side);
    ContactSheetOptions options;
    options.columns = flags.columns;
    sheet_.emplace(frames, static_cast<int>(thumbnail_.width), static_cast<int>(thumbnail_.height),
                   title, options);
  }

  void take(const FrameGroup& group) {
    if (!flags_.directory.empty())
      pool_.parallel_for(group.frames(), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) write_file(group, i);
      });
    if (sheet_)
      for (int64_t i = 0; i < group.frames(); ++i) add_to_sheet(group, i);
  }

  void finish() {
    if (sheet_) write_png(flags_.sheet, sheet_->image());
  }

 private:
  void write_file(const FrameGroup& group, int64_t i) {
    const auto at = static_cast<size_t>(i);
    // A frame that was sampled twice in a row is one file.
    if (i > 0 && group.index[at] == group.index[at - 1]) return;
    const ConstTensorView frame = ConstTensorView(group.pixels.view())[i];
    const std::string bytes =
        encode_png(frame.data<uint8_t>(), static_cast<int>(group.width()),
                   static_cast<int>(group.height()), static_cast<size_t>(frame.stride(0)));
    real_files().write(join_path(flags_.directory, file_name(group.index[at], group.times[at])),
                       bytes);
  }

  void add_to_sheet(const FrameGroup& group, int64_t i) {
    const ConstTensorView frame = ConstTensorView(group.pixels.view())[i];
    const std::string label = time_label(group.times[static_cast<size_t>(i)]);
    if (frame.size(1) == thumbnail_.width && frame.size(0) == thumbnail_.height) {
      sheet_->add(frame.data<uint8_t>(), static_cast<size_t>(frame.stride(0)), label);
      return;
    }
    Tensor small(DType::u8, {thumbnail_.height, thumbnail_.width, 3});
    resize(context_, frame, ResizeFilter::area, small);
    sheet_->add(small.data<uint8_t>(), static_cast<size_t>(thumbnail_.width) * 3, label);
  }

  const FramesFlags& flags_;
  const ThreadPool pool_;
  const Context context_;
  FrameSize thumbnail_;
  std::optional<ContactSheet> sheet_;
};

nlohmann::json listed(const std::vector<SampledFrame>& samples, const std::string& directory) {
  nlohmann::json out = nlohmann::json::array();
  for (const SampledFrame& sample : samples) {
    nlohmann::json entry = {{"index", sample.index}, {"time", sample.time}};
    if (!directory.empty())
      entry["file"] = join_path(directory, file_name(sample.index, sample.time));
    out.push_back(std::move(entry));
  }
  return out;
}

// Refuses what makes no sense before a video is opened.
void check_flags(const FramesFlags& flags) {
  using Way = FrameChoice::Way;
  const Way way = flags.choice.way;
  if (!flags.sheet.empty() && !flags.sheet.ends_with(".png")) {
    throw Error(ErrorKind::usage, fmt::format("--contact-sheet {}: kinora writes PNG; give a name "
                                              "that ends in .png",
                                              flags.sheet));
  }
  if (flags.directory.empty() && flags.sheet.empty() && !flags.json)
    throw Error(ErrorKind::usage,
                "say where the frames should go: -o DIR, --contact-sheet FILE, or --json to list "
                "them only");
  if (flags.rule == "qwen" && way != Way::model && way != Way::rate && way != Way::count)
    throw Error(ErrorKind::usage, "--rule qwen goes with --fps or --frames only");
  check_choice(flags.choice);
}

// What Qwen's models would look at.
FrameChoice qwen_choice(const FrameChoice& choice, Video& video) {
  QwenFrameRule rule;
  if (choice.way == FrameChoice::Way::rate) rule.fps = choice.fps;
  if (choice.way == FrameChoice::Way::count) rule.count = choice.count;
  const FrameRange part = frames_within(video.times(), choice.start, choice.end);
  const FrameChoice all = FrameChoice::all().within(choice.start, choice.end);
  if (part.count == 0) return all;  // within one frame
  return FrameChoice::at_indices(qwen_frames(rule, part.first, part.count, video.info().fps));
}

FrameChoice choose_frames(const FramesFlags& flags, Video& video) {
  if (flags.rule != "qwen" && flags.choice.way != FrameChoice::Way::model) return flags.choice;
  FrameChoice choice =
      flags.rule == "qwen" ? qwen_choice(flags.choice, video) : FrameChoice::rate(1);
  choice.snap = flags.choice.snap;
  return choice.within(flags.choice.start, flags.choice.end);
}

const char* rule_name(const FramesFlags& flags) {
  using Way = FrameChoice::Way;
  if (flags.rule == "qwen") return "qwen";
  switch (flags.choice.way) {
    case Way::model:
    case Way::rate:
      return "every";
    case Way::count:
      return "uniform";
    case Way::times:
      return "times";
    case Way::indices:
      return "indices";
    case Way::all:
      return "all";
  }
  return "unknown";
}

int frames(const FramesFlags& flags, const CancelToken& cancel) {
  check_flags(flags);
  const auto filter = parse_resize_filter(flags.filter);
  const std::optional<FrameSize> wanted =
      flags.size.empty() ? std::nullopt : std::optional(parse_size(flags.size));

  TerminalProgress progress(flags.quiet);
  OpenOptions open;
  open.limits = video_limits(flags.limits);
  open.cancel = cancel;
  open.progress = &progress;
  open.index_cache = default_index_cache();
  const std::unique_ptr<Video> video = open_video(input_or_demo(flags.source), open);
  const VideoInfo& info = video->info();
  std::vector<SampledFrame> samples = video->sample(choose_frames(flags, *video));
  if (samples.empty()) refuse_empty_part(flags.source, video->times());

  nlohmann::json out = {{"source", flags.source},
                        {"rule", rule_name(flags)},
                        {"frames", listed(samples, flags.directory)}};
  const double missing = missing_seconds(info, info.promised_duration);
  out["missing"] = missing;  // seconds
  if (missing > 0 && !flags.quiet) {
    complain(
        fmt::format("warning: the file was cut: {:.2f} s of the {} that its header promises "
                    "are missing",
                    missing, time_label(info.promised_duration)));
  }
  ReadReport report;
  if (!flags.directory.empty() || !flags.sheet.empty()) {
    ReadOptions read;
    const int64_t limit = flags.max_side > 0        ? flags.max_side
                          : flags.directory.empty() ? thumbnail_side
                                                    : 0;
    read.target_size = [&](FrameSize source, int64_t) {
      return wanted ? *wanted : fitted(source, limit);
    };
    read.filter = *filter;
    read.threads = flags.threads;
    read.cancel = cancel;
    read.progress = &progress;
    if (!flags.directory.empty()) {
      std::error_code failure;
      std::filesystem::create_directories(flags.directory, failure);
      if (failure)
        throw Error(ErrorKind::not_found, fmt::format("cannot make the directory {}: {}",
                                                      flags.directory, failure.message()));
    }
    const auto count = static_cast<int64_t>(samples.size());
    FrameStream stream = video->read(std::move(samples), read);
    const std::string title =
        fmt::format("{}  {}×{}  {}", std::filesystem::path(flags.source).filename().string(),
                    info.size.width, info.size.height, time_label(info.duration, 0));
    FrameWriter writer(flags, stream.size(), count, title);
    std::set<int64_t> came;
    while (const auto group = stream.next()) {
      writer.take(*group);
      came.insert(group->index.begin(), group->index.end());
    }
    for (nlohmann::json& frame : out["frames"]) {
      if (came.contains(frame["index"].get<int64_t>())) continue;
      frame["lost"] = true;
      frame.erase("file");
    }
    writer.finish();
    report = stream.report();
    out["size"] = {{"width", stream.size().width}, {"height", stream.size().height}};
    out["delivered"] = report.delivered;
    out["lost"] = report.lost;
    out["decoded"] = report.decoded_packets;
    out["decode_cpu"] = report.decode_cpu_seconds;
  }
  progress.clear();
  if (flags.json) {
    fmt::print("{}\n", json_text(out));
  } else if (!flags.quiet) {
    remark("{} frames{}{}\n", report.delivered,
           flags.directory.empty() ? "" : " in " + flags.directory,
           flags.sheet.empty() ? "" : ", contact sheet " + flags.sheet);
  }
  for (const DamagedSpan& span : report.damaged)
    complain(fmt::format("warning: damaged from {} to {}: {} frames lost", time_label(span.from),
                         time_label(span.to), span.lost));
  if (report.lost > 0 && report.delivered == 0)
    throw Error(ErrorKind::bad_input, flags.source + ": none of the frames could be decoded");
  return 0;
}

}  // namespace

void add_frames(CommandLine& line) {
  auto flags = std::make_shared<FramesFlags>();
  CLI::App* command =
      line.app.add_subcommand("frames", "Write frames of a video as pictures or a contact sheet");
  command->add_option("video", flags->source, "File, URL, folder of pictures, or - for a pipe")
      ->required()
      ->type_name("VIDEO");
  add_frame_flags(*command, flags->choice);
  add_frame_list_flags(*command, flags->choice);
  command
      ->add_option("--rule", flags->rule,
                   "How --fps and --frames count: time (the frame on screen) or qwen (as Qwen-VL "
                   "models were trained)")
      ->group(frame_flags_group)
      ->check(one_of({"time", "qwen"}));
  command->add_option("-o,--output", flags->directory, "Write PNG files into this directory")
      ->group("The pictures")
      ->type_name("DIR");
  command
      ->add_option("--contact-sheet", flags->sheet,
                   "Write one PNG (.png) with all frames and times")
      ->group("The pictures")
      ->type_name("FILE");
  command->add_option("--columns", flags->columns, "Columns of the contact sheet; 0 is automatic")
      ->group("The pictures")
      ->check(whole(0));
  command->add_option("--size", flags->size, "Exact size of the frames, as 448x448")
      ->group("The pictures")
      ->type_name("WxH");
  command
      ->add_option("--max-side", flags->max_side,
                   "Shrink frames until no side is longer (contact sheets alone: 256)")
      ->group("The pictures")
      ->check(whole(1));
  command->add_option("--filter", flags->filter, "bicubic, area, bilinear or nearest")
      ->group("The pictures")
      ->capture_default_str()
      ->check(one_of({"bicubic", "area", "bilinear", "nearest"}));
  command->add_option("--threads", flags->threads, "Threads to use; 0 is one per core")
      ->group("The machine")
      ->capture_default_str()
      ->check(threads());
  add_limit_flags(*command, flags->limits);
  command->add_flag("--json", flags->json, "Print index and exact time of every frame");
  command->add_flag("-q,--quiet", flags->quiet, "No progress, no summary");
  command->footer(
      "Examples:\n"
      "  kinora frames talk.mp4 --fps 1 -o frames/\n"
      "  kinora frames talk.mp4 --frames 30 --contact-sheet sheet.png\n"
      "  kinora frames talk.mp4 --times 12.5,1:30 -o . --size 448x448\n"
      "  kinora frames talk.mp4 --every 10 --start 1:00:00 --contact-sheet hour2.png\n"
      "  kinora frames talk.mp4 --rule qwen --json      which frames a Qwen-VL model would see\n\n"
      "Without a choice it is --fps 1. Times are those of the frames themselves.");
  command->callback([flags, &line] {
    line.action = [flags, &line] { return frames(*flags, line.interrupts.token()); };
  });
}

}  // namespace kinora::cli
