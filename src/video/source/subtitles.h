// Subtitles of a video: what is said when. Read from a file of any text format that libavformat
// knows (SubRip, WebVTT, ASS, SAMI, MicroDVD …), or from inside the video (Video::subtitles). Used
// by engine/, which puts them between the frames they belong to.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/loop_guard.h"

namespace kinora {

struct Subtitle {
  double begin = 0;  // seconds
  double end = 0;
  std::string text;  // one line, without markup
};

// A stream of subtitles inside a video.
struct SubtitleTrack {
  int stream = 0;        // its number in the container
  std::string language;  // as the container says it ("eng"), else "und"
  std::string codec;     // "subrip", "mov_text", "dvd_subtitle"
  bool text = false;     // else pictures, which are not read
  int rank = 0;          // the smallest is what a player would show
};

// In order of time. Throws bad_input, naming the line where there is one, for what is not a file of
// subtitles, for a time that cannot be read, for text that is not UTF-8 (or UTF-16 with its mark),
// and for a file without a single subtitle; a resource error beyond 16 MiB or 262,144 subtitles.
std::vector<Subtitle> parse_subtitles(std::string_view content, const std::string& name,
                                      LoopGuard& guard);
std::vector<Subtitle> parse_subtitles(std::string_view content, const std::string& name);
// Of a local file. Nothing but its bytes is looked at: no other file, no network.
std::vector<Subtitle> read_subtitles(const FileSystem& files, const std::string& path,
                                     const CancelToken& cancel = {});

}  // namespace kinora
