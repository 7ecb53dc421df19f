// Subtitles of a video: what is said when. Read from SubRip (.srt) and WebVTT (.vtt) files; the
// session puts them between the frames they belong to.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace kinora {

struct Subtitle {
  double begin = 0;  // seconds
  double end = 0;
  std::string text;  // one line, without markup
};

// In order of time. Throws bad_input, naming the line, for what is neither format, for a time that
// is none, and for a file without a single subtitle.
std::vector<Subtitle> parse_subtitles(std::string_view content, const std::string& name);
std::vector<Subtitle> read_subtitles(const FileSystem& files, const std::string& path);

}  // namespace kinora
