#include "cli/video_flags.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "base/error.h"

namespace kinora::cli {
namespace {

constexpr const char* group = "Which frames";

[[noreturn]] void refuse_time(const std::string& text) {
  throw Error(ErrorKind::usage,
              fmt::format("'{}' is not a time; write seconds (95.5) or h:mm:ss (0:01:35.5)", text));
}

}  // namespace

double parse_time(const std::string& text) {
  double seconds = 0;
  int parts = 0;
  const char* at = text.data();
  const char* end = text.data() + text.size();
  while (true) {
    double part = 0;
    const auto [after, error] = std::from_chars(at, end, part, std::chars_format::fixed);
    if (error != std::errc() || !(part >= 0) || !std::isfinite(part) || ++parts > 3)
      refuse_time(text);
    seconds = seconds * 60 + part;
    if (after == end) return seconds;
    if (*after != ':' || part != std::floor(part)) refuse_time(text);
    at = after + 1;
  }
}

void FrameChoice::add_to(CLI::App& command) {
  command.add_option("--fps", fps, "So many frames a second")->group(group);
  command.add_option("--every", every, "A frame every so many seconds")->group(group);
  command.add_option("--frames", frames, "So many frames, evenly spread")->group(group);
  command.add_option("--times", times, "The frames on screen at these times: 12.5,1:30,0:02:10.25")
      ->group(group)
      ->delimiter(',');
  command.add_option("--indices", indices, "Frames by number, the first is 0: 0,24,48")
      ->group(group)
      ->delimiter(',');
  command.add_flag("--all", all, "Every frame")->group(group);
  command
      .add_option("--rule", rule,
                  "How --fps and --frames count: time (the frame on screen) or qwen (as Qwen-VL "
                  "models were trained)")
      ->group(group)
      ->check(CLI::IsMember({"time", "qwen"}));
  command.add_option("--start", start, "Begin at this time")->group(group);
  command.add_option("--end", end, "End at this time")->group(group);
}

SamplingRule FrameChoice::sampling() const {
  const int ways = fps.has_value() + every.has_value() + frames.has_value() + !times.empty() +
                   !indices.empty() + all;
  if (ways > 1)
    throw Error(ErrorKind::usage,
                "choose frames in one way: --fps, --every, --frames, --times, --indices or --all");
  const bool qwen = rule == "qwen";
  if (qwen && (every || !times.empty() || !indices.empty() || all))
    throw Error(ErrorKind::usage, "--rule qwen goes with --fps or --frames only");
  SamplingRule sampling = SamplingRule::every(1.0);
  if (qwen) {
    sampling = SamplingRule::qwen(fps.value_or(2.0));
    sampling.count = frames.value_or(0);
  } else if (fps) {
    sampling = SamplingRule::every(*fps);
  } else if (every) {
    if (!(*every > 0))
      throw Error(ErrorKind::usage, fmt::format("--every {} s: must be above 0", *every));
    sampling = SamplingRule::every(1 / *every);
  } else if (frames) {
    sampling = SamplingRule::uniform(*frames);
  } else if (!times.empty()) {
    std::vector<double> seconds;
    for (const std::string& text : times) seconds.push_back(parse_time(text));
    sampling = SamplingRule::at_times(std::move(seconds));
  } else if (!indices.empty()) {
    sampling = SamplingRule::at_indices(indices);
  } else if (all) {
    sampling = SamplingRule::all_frames();
  }
  if (!start.empty() || !end.empty())
    sampling = sampling.within(start.empty() ? 0 : parse_time(start),
                               end.empty() ? sampling.end : parse_time(end));
  check_rule(sampling);
  return sampling;
}

void SourceLimits::add_to(CLI::App& command) {
  command.add_option("--allow-pixels", pixels, "Refuse sources with larger pictures than this")
      ->group("The machine")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command.add_option("--allow-side", side, "Refuse sources whose pictures are wider or higher")
      ->group("The machine")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
}

void SourceLimits::apply(VideoLimits& limits) const {
  limits.max_pixels = pixels;
  limits.max_side = side;
}

}  // namespace kinora::cli
