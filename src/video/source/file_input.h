// A file of this machine as FFmpeg's input, opened by us: never a pipe or a device, which could
// wait for ever, and never by a name that FFmpeg would take for something else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "video/ffmpeg_handles.h"
#include "video/source/watch.h"

namespace kinora {

class FileInput {
 public:
  // Throws not_found, bad_input (no regular file), resource. The watch is not owned.
  FileInput(const std::string& path, const std::string& name, const Watch& watch);
  ~FileInput();
  FileInput(const FileInput&) = delete;
  FileInput& operator=(const FileInput&) = delete;

  AVIOContext* context() { return context_.get(); }
  // The first bytes of the file, up to `count`. Reading goes on where it was.
  std::vector<uint8_t> head(size_t count) const;

 private:
  static int read(void* self, uint8_t* bytes, int size);
  static int64_t seek(void* self, int64_t offset, int whence);

  const Watch& watch_;
  int descriptor_ = -1;
  OwnInputPtr context_;
};

}  // namespace kinora
