// Plain text from packets of subtitles, whether they come from a file of their own (subtitles.cc)
// or from inside a video (embedded_subtitles.cc).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/loop_guard.h"
#include "video/ffmpeg_handles.h"

namespace kinora {

// Without blanks and line ends around it.
std::string_view trimmed(std::string_view text);

class SubtitleDecoder {
 public:
  // Throws unsupported or bad_input, with this name, where FFmpeg cannot decode the stream.
  SubtitleDecoder(const AVStream& stream, const std::string& name);

  // One line without markup, empty where the packet shows nothing; nothing at all where its bytes
  // are no text.
  std::optional<std::string> text(AVPacket& packet, LoopGuard& guard);

 private:
  CodecPtr decoder_;
};

}  // namespace kinora
