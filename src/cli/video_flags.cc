#include "cli/video_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cli/checks.h"

namespace kinora::cli {
namespace {

[[noreturn]] void refuse_time(const std::string& text) {
  throw Error(ErrorKind::usage,
              fmt::format("'{}' is not a time; write 95.5, 90s, 5min, 1:35 or 0:01:35.5", text));
}

// 0 for what is no unit of time.
double seconds_of(std::string_view unit) {
  return unit == "s" ? 1 : unit == "min" ? 60 : unit == "h" ? 3600 : 0;
}

[[noreturn]] void refuse_two_ways(const CLI::App& command) {
  std::vector<std::string> given;
  for (const char* name : {"--fps", "--every", "--frames", "--times", "--indices", "--all"}) {
    const CLI::Option* option = command.get_option_no_throw(name);
    if (option != nullptr && option->count() > 0) given.emplace_back(name);
  }
  throw Error(ErrorKind::usage,
              fmt::format("choose frames in one way: {}, not both", fmt::join(given, " or ")));
}

// The part of the video stays: its flags may have come before.
void choose(const CLI::App& command, FrameChoice& choice, FrameChoice wanted) {
  if (choice.way != FrameChoice::Way::model) refuse_two_ways(command);
  wanted.snap = choice.snap;
  choice = wanted.within(choice.start, choice.end);
}

// An option whose value becomes a choice.
template <typename Value, typename Make>
CLI::Option* add_way(CLI::App& command, const char* name, FrameChoice& choice, const Make& make,
                     const char* text) {
  const auto take = [&command, &choice, make](const Value& value) {
    choose(command, choice, make(value));
  };
  return command.add_option_function<Value>(name, take, text)->group(frame_flags_group);
}

void add_end(CLI::App& command, const char* name, double& seconds, const char* text) {
  const auto take = [&seconds](const std::string& time) { seconds = parse_time(time); };
  command.add_option_function<std::string>(name, take, text)
      ->group(frame_flags_group)
      ->type_name("TIME");
}

FrameChoice every(const std::string& time) {
  if (const double seconds = parse_time(time); seconds > 0) return FrameChoice::rate(1 / seconds);
  throw Error(ErrorKind::usage, fmt::format("--every {}: must be above 0", time));
}

FrameChoice at_times(const std::vector<std::string>& texts) {
  std::vector<double> seconds;
  for (const std::string& text : texts) seconds.push_back(parse_time(text));
  return FrameChoice::at_times(std::move(seconds));
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
    if (const double unit = parts == 1 ? seconds_of({after, end}) : 0; unit > 0) return unit * part;
    if (*after != ':' || part != std::floor(part)) refuse_time(text);
    at = after + 1;
  }
}

void add_frame_flags(CLI::App& command, FrameChoice& choice) {
  add_way<double>(command, "--fps", choice, FrameChoice::rate, "Frames per second");
  add_way<int64_t>(command, "--frames", choice, FrameChoice::evenly,
                   "Number of frames, evenly spread");
  add_end(command, "--start", choice.start, "Begin at this time (95.5 or 1:35.5)");
  add_end(command, "--end", choice.end, "End at this time");
  add_end(command, "--snap", choice.snap,
          "Take frames up to this much earlier or later where they are cheaper to decode (0.5)");
}

void add_frame_list_flags(CLI::App& command, FrameChoice& choice) {
  add_way<std::string>(command, "--every", choice, every, "A frame in every such time (10, 1:30)")
      ->type_name("TIME");
  add_way<std::vector<std::string>>(command, "--times", choice, at_times,
                                    "The frames on screen at these times: 12.5,1:30,0:02:10.25")
      ->delimiter(',');
  add_way<std::vector<int64_t>>(command, "--indices", choice, FrameChoice::at_indices,
                                "Frames by number, the first is 0: 0,24,48")
      ->delimiter(',');
  const auto take_all = [&command, &choice] { choose(command, choice, FrameChoice::all()); };
  command.add_flag_callback("--all", take_all, "Every frame")->group(frame_flags_group);
}

void add_limit_flags(CLI::App& command, InputLimits& limits) {
  limits.how_to_raise = " (--raise-limits 2, or more)";
  command
      .add_option("--raise-limits", limits.times,
                  "Allow sources that cost so many times as much as is taken for safe: pixels of a "
                  "picture, pictures, bytes of a pipe")
      ->group("The machine")
      ->type_name("TIMES")
      ->check(above_zero());
  command
      .add_flag("--allow-other-hosts", limits.other_hosts,
                "Let a remote playlist lead to other hosts than its own")
      ->group("The machine");
}

}  // namespace kinora::cli
