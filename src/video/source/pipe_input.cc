#include "video/source/pipe_input.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

extern "C" {
#include <libavutil/error.h>
#include <libavutil/mem.h>
}

namespace kinora {

namespace {

constexpr int buffer_bytes = 64 * 1024;
constexpr int poll_milliseconds = 20;

int read_for_ffmpeg(void* input, uint8_t* bytes, int size) {
  const int got = static_cast<PipeInput*>(input)->read(bytes, size);
  return got == 0 ? AVERROR_EOF : got;
}

}  // namespace

PipeInput::PipeInput(int descriptor, Watch& watch, double stall_timeout)
    : descriptor_(descriptor), watch_(watch), stall_timeout_(stall_timeout) {
  auto* buffer = static_cast<unsigned char*>(av_malloc(buffer_bytes));
  AVIOContext* context = buffer == nullptr ? nullptr
                                           : avio_alloc_context(buffer, buffer_bytes, 0, this,
                                                                &read_for_ffmpeg, nullptr, nullptr);
  if (context == nullptr) {
    av_free(buffer);
    throw Error(ErrorKind::resource, "not enough memory to read a pipe");
  }
  context->seekable = 0;
  context_.reset(context);
}

int PipeInput::read(uint8_t* bytes, int size) {
  watch_.allow(stall_timeout_);
  while (!watch_.give_up()) {
    pollfd waiting{descriptor_, POLLIN, 0};
    const int ready = poll(&waiting, 1, poll_milliseconds);
    if (ready < 0 && errno != EINTR) return AVERROR(errno);
    if (ready <= 0) continue;
    const ssize_t got = ::read(descriptor_, bytes, static_cast<size_t>(size));
    if (got >= 0) return static_cast<int>(got);
    if (errno != EINTR && errno != EAGAIN) return AVERROR(errno);
  }
  return AVERROR_EXIT;
}

}  // namespace kinora
