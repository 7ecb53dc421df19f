// Packets of the one video stream that matters, from an open file, URL or pipe. Each pass over a
// video (the index, every FrameStream) has a Demuxer of its own. Never hangs: every wait has a
// limit and ends when someone cancels.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/cancel.h"
#include "video/ffmpeg_handles.h"
#include "video/source/fence.h"
#include "video/source/watch.h"
#include "video/video.h"

namespace kinora {

class FileInput;
class PipeInput;

// Where the bytes come from, once pipes and downloads have been kept in a file.
struct Origin {
  std::string name;            // as a person gave it, for messages
  std::string url;             // what FFmpeg opens; unused when `pipe` is set
  int pipe = -1;               // a descriptor that is read as it comes
  bool remote = false;         // waits are limited by stall_timeout
  bool camera = false;         // `url` is a device
  std::shared_ptr<void> keep;  // a temporary file that lives as long as the origin
};

class Demuxer {
 public:
  // `probe` looks into the stream for what the container does not say. A second opening of a
  // container that says everything may do without; then packets come as they are stored, and
  // FFmpeg need not parse every one of them.
  Demuxer(const Origin& origin, const OpenOptions& options, const CancelToken& cancel,
          const CancelToken& stop, bool probe);
  ~Demuxer();
  Demuxer(const Demuxer&) = delete;
  Demuxer& operator=(const Demuxer&) = delete;

  // Another reader takes over.
  void obey(const CancelToken& cancel, const CancelToken& stop) { watch_.obey(cancel, stop); }

  const AVFormatContext& format() const { return *format_; }
  const AVStream& stream() const { return *stream_; }
  // What a decoder must be opened with.
  const AVCodecParameters& parameters() const;
  bool has_audio() const;
  // Container formats whose headers say all that probing would find out.
  bool self_describing() const;
  // Such a format, and a codec whose packets in it are whole pictures with times of their own.
  bool needs_no_parser() const;

  // Packets of another stream from now on: subtitles.
  void turn_to(int stream);

  // The next packet of the stream; false at the end. A broken stretch is passed over.
  bool read(AVPacket& packet);
  // Goes to a keyframe at or before the timestamp, or to a byte; false when FFmpeg refuses. Only
  // the packets tell where it landed.
  bool seek_time(int64_t timestamp);
  bool seek_byte(int64_t position);

  // Reading stopped at an error rather than at the end of the file.
  bool ended_badly() const { return ended_badly_; }

 private:
  void open(bool probe);
  void select_stream();
  void keep_only(int stream);
  void check_size();
  void add_filter();
  bool read_unfiltered(AVPacket& packet);
  double patience(double remote_seconds) const;
  // The format of an input of our own, by its content.
  const AVInputFormat* find_format(AVIOContext& input) const;
  void refuse_special(std::string_view picture) const;
  [[noreturn]] void refuse_list(const char* format) const;
  [[noreturn]] void fail(int code, const char* doing) const;

  Origin origin_;
  OpenOptions options_;
  Watch watch_;
  // These outlive the format that reads through them.
  Fence fence_;
  std::unique_ptr<PipeInput> pipe_;
  std::unique_ptr<FileInput> file_;
  FormatPtr format_;
  AVStream* stream_ = nullptr;
  FilterPtr filter_;
  bool filter_drained_ = false;
  bool ended_badly_ = false;
};

}  // namespace kinora
