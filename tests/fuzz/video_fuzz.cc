// Hostile bytes through all of video/: opening, indexing, planning, decoding, converting, and as a
// file of subtitles. Any Error but an internal one is fine; a crash, a hang or an exception of
// another type is not.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "video/source/subtitles.h"
#include "video/video.h"

namespace {

template <typename Action>
void survive(const Action& action) {
  try {
    action();
  } catch (const kinora::Error& error) {
    if (error.kind() != kinora::ErrorKind::internal) return;
    std::fprintf(stderr, "internal error: %s\n", error.what());
    std::abort();
  }
}

void read_frames(const std::string& path) {
  kinora::OpenOptions open;
  open.limits.max_pixels = 1 << 18;
  open.limits.max_side = 2048;
  open.limits.max_packets = 1000;
  const auto video = kinora::open_video(path, open);
  kinora::ReadOptions options;
  options.threads = 2;
  options.frames_per_group = 3;
  options.target_size = [](kinora::FrameSize, int64_t) { return kinora::FrameSize{16, 16}; };
  kinora::FrameStream stream = video->read(kinora::FrameChoice::evenly(6), options);
  while (stream.next()) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int file = memfd_create("fuzz", 0);
  if (file < 0 || write(file, data, size) != static_cast<ssize_t>(size)) std::abort();
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  survive([&] { read_frames(path); });
  survive([&] { kinora::read_subtitles(kinora::real_files(), path); });
  close(file);
  return 0;
}
