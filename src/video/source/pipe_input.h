// A pipe, FIFO or terminal as FFmpeg's input. Waits with poll, so that a silent writer can be
// given up on.
#pragma once

#include "video/ffmpeg_handles.h"
#include "video/source/watch.h"

namespace kinora {

class PipeInput {
 public:
  // Neither the descriptor nor the watch is owned.
  PipeInput(int descriptor, Watch& watch, double stall_timeout);
  PipeInput(const PipeInput&) = delete;
  PipeInput& operator=(const PipeInput&) = delete;

  AVIOContext* context() { return context_.get(); }

  // Up to `size` bytes; 0 at the end, below 0 an FFmpeg error.
  int read(uint8_t* bytes, int size);

 private:
  int descriptor_;
  Watch& watch_;
  double stall_timeout_;
  OwnInputPtr context_;
};

}  // namespace kinora
