// Flags that every command about a video's frames shares: which frames, and how large a source may
// be. Used by command_frames and command_probe.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "video/sampling.h"
#include "video/video.h"

namespace kinora::cli {

// Seconds from "95.5", "1:35.5" or "0:01:35.5". Throws a usage error that shows the text.
double parse_time(const std::string& text);

struct FrameChoice {
  std::optional<double> fps;
  std::optional<double> every;  // seconds
  std::optional<int64_t> frames;
  std::vector<std::string> times;
  std::vector<int64_t> indices;
  bool all = false;
  std::string rule;  // "time" (the default) or "qwen"; with fps or frames
  std::string start;
  std::string end;

  void add_to(CLI::App& command);
  // Throws a usage error when two ways of choosing were given.
  SamplingRule sampling() const;
};

struct SourceLimits {
  int64_t pixels = VideoLimits{}.max_pixels;
  int64_t side = VideoLimits{}.max_side;

  void add_to(CLI::App& command);
  void apply(VideoLimits& limits) const;
};

}  // namespace kinora::cli
