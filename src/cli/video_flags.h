// Flags that commands about a video's frames share: which frames, and how large a source may be.
// Used by every command that takes a video.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include <kinora/frames.h>
#include <kinora/session.h>

namespace kinora::cli {

constexpr const char* frame_flags_group = "Which frames";

// Seconds from "95.5", "90s", "5min", "1:35.5" or "0:01:35.5". Throws a usage error that shows the
// text.
double parse_time(const std::string& text);

// --fps, --frames, --start and --end, written into `choice` as they are parsed. Parsing throws a
// usage error when frames are chosen in two ways.
void add_frame_flags(CLI::App& command, FrameChoice& choice);
// The other ways to choose: --every, --times, --indices and --all.
void add_frame_list_flags(CLI::App& command, FrameChoice& choice);

// --raise-limits and --allow-other-hosts.
void add_limit_flags(CLI::App& command, InputLimits& limits);

}  // namespace kinora::cli
