// For the tests of video/: small media made with the ffmpeg tool, and what plain sequential
// decoding with FFmpeg gives for them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

extern "C" {
#include <libavutil/frame.h>
}

#include "video/video.h"

namespace kinora {

// Runs "ffmpeg ARGUMENTS OUTPUT" once and keeps the output in the system's temporary directory,
// under a name that depends on the arguments. "{name}" in the arguments stands for the path of
// another medium made earlier by that name. Returns the path.
std::string make_media(const std::string& name, const std::string& arguments);
bool has_encoder(const std::string& encoder);
// A new empty directory, removed at the end of the test program.
std::string scratch_directory();
void write_file(const std::string& path, const std::string& bytes);
std::string read_whole(const std::string& path);

// Pixels, size and format of a picture in one number.
uint64_t hash_frame(const AVFrame& frame);

struct PlainFrame {
  uint64_t hash = 0;
  int64_t pts = 0;
};

// Every frame that FFmpeg gives, in its order: one thread, nothing skipped, no seeks.
void for_each_plain_frame(const std::string& path,
                          const std::function<void(const AVFrame& frame)>& use);
std::vector<PlainFrame> decode_plainly(const std::string& path);

// All frames in one group.
FrameGroup read_packed(Video& video, std::vector<SampledFrame> samples, ReadOptions options);

// A small clip with closed groups of 12 frames at 24 fps, 5 s.
std::string small_clip();

}  // namespace kinora
