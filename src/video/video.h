// Frames of a video, as a model wants them. This is all that engine/ and the program see of video/:
//
//   auto video = open_video("talk.mp4");
//   auto samples = video->sample(FrameChoice::rate(2));
//   ReadOptions options;
//   options.target_size = [](FrameSize source, int64_t frames) { return FrameSize{448, 448}; };
//   FrameStream stream = video->read(samples, options);
//   while (auto group = stream.next()) use(*group);
//
// Keyframe intervals are decoded in parallel while earlier groups are already taken. A frame is
// always the one that plain sequential decoding would give for that index. Still pictures, GIFs and
// folders of pictures are videos too.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/frame_group.h"
#include "base/progress.h"
#include "ops/resize.h"
#include "video/limits.h"
#include "video/sampling.h"
#include "video/source/subtitles.h"

namespace kinora {

struct FrameSize {
  int64_t width = 0;
  int64_t height = 0;
  bool operator==(const FrameSize&) const = default;
};

struct OpenOptions {
  VideoLimits limits;
  CancelToken cancel;            // also stops opening and indexing
  double open_timeout = 20;      // seconds until a remote source must have answered
  double stall_timeout = 10;     // seconds without a byte from a remote source or pipe
  bool live = false;             // read a pipe or URL as it comes; nothing is kept or indexed
  double folder_fps = 1;         // of a folder of pictures
  std::string spool_directory;   // for pipes and downloads; empty: the system's
  Progress* progress = nullptr;  // stages "download" and "index"
  // A directory that keeps the indices of large local files between runs; empty: none does.
  std::string index_cache;
  int64_t index_cache_above = int64_t{8} << 20;  // bytes of the file
};

struct VideoInfo {
  std::string source;        // as it was given
  std::string container;     // "mov,mp4,…", "matroska,webm", "folder"
  std::string codec;         // "h264"
  std::string pixel_format;  // "yuv420p10le"
  std::string color_matrix;  // "bt709"; "unknown" when the stream does not say
  std::string color_range;   // "limited", "full" or "unknown"
  int bit_depth = 0;
  FrameSize size;        // upright: rotation applied
  FrameSize coded_size;  // as stored
  int rotation = 0;      // degrees clockwise that make the stored picture upright
  bool still = false;    // one picture
  bool has_audio = false;
  std::vector<SubtitleTrack> subtitles;  // inside the container

  // Exact once the index is made; for a live source frames and duration are 0.
  int64_t frames = 0;
  double duration = 0;           // seconds, from the first frame to the end of the last
  double promised_duration = 0;  // by the container's header; 0: it does not say
  double fps = 0;                // average
  double start_offset = 0;       // container time of the first frame, seconds
  bool variable_rate = false;    // some frame lasts 1.5 times as long as another
  int64_t keyframes = 0;         // that decoding can start at
  double keyframe_gap = 0;       // longest distance between two of them, seconds
  int64_t disposable = 0;        // frames that no other frame needs
  int64_t hidden = 0;            // packets that show nothing: edit lists, alternate references
  int64_t bytes = 0;             // of compressed video
  bool repaired_times = false;   // the file lacked presentation times; order was recovered
};

// What one worker did between two waits, for traces.
struct DecodeSpan {
  int worker = 0;   // from 0
  double from = 0;  // of the video, seconds: the interval it worked on
  double to = 0;
  std::chrono::steady_clock::time_point begin;
  std::chrono::steady_clock::time_point end;
};

struct ReadOptions {
  // Size of the delivered frames for an upright source size and number of sampled frames (0 when
  // not known). Empty: the source's own size.
  std::function<FrameSize(FrameSize source, int64_t frames)> target_size;
  ResizeFilter filter = ResizeFilter::bicubic;
  int64_t frames_per_group = 16;
  int64_t queue_groups = 0;  // groups that may be under way; 0: enough to keep the threads busy
  int threads = 0;           // 0: one per core that this process may use
  CancelToken cancel;
  Progress* progress = nullptr;  // stage "decode", in frames
  // Called by a worker (from 0) before every packet; may wait, so that others get the cores.
  std::function<void(int worker)> before_packet;
  std::function<void(const DecodeSpan&)> on_span;  // called from the workers
};

// A stretch of the video that could not be decoded as it was meant.
struct DamagedSpan {
  double from = 0;  // seconds
  double to = 0;
  int64_t lost = 0;  // sampled frames in it that could not be delivered
};

struct ReadReport {
  std::vector<DamagedSpan> damaged;
  int64_t delivered = 0;        // frames
  int64_t lost = 0;             // sampled frames that could not be delivered
  int64_t decoded_packets = 0;  // given to a decoder
  int64_t skipped_packets = 0;  // left out because nothing sampled needs them
  int64_t seeks = 0;
  int64_t intervals = 0;
  int workers = 0;
  // Of the workers, conversion included; the time of FFmpeg's own threads is estimated from
  // theirs.
  double decode_cpu_seconds = 0;
  double convert_seconds = 0;  // CPU time, of those, in conversion
};

// Groups of frames in presentation order. One consumer. Destroying it stops all work.
class FrameStream {
 public:
  FrameStream(FrameStream&&) noexcept;
  FrameStream& operator=(FrameStream&&) noexcept;
  ~FrameStream();

  // The next group, or nothing at the end. Frames that could not be decoded are left out of their
  // group and reported. Throws what stopped the workers, and cancelled within 100 ms.
  std::optional<FrameGroup> next();

  FrameSize size() const;  // of the frames delivered
  // Complete once next() has returned nothing; until then, what is known so far.
  ReadReport report() const;

  class Job;
  explicit FrameStream(std::unique_ptr<Job> job);

 private:
  std::unique_ptr<Job> job_;
};

class Video {
 public:
  virtual ~Video() = default;

  // The first call of info, sample or times makes the index: one pass over the packets, no
  // decoding. Thread safe.
  virtual const VideoInfo& info() = 0;
  virtual bool live() const = 0;

  // Exact times of all frames in seconds from the first. Empty for a live source.
  virtual const std::vector<double>& times() = 0;
  // A live source has no samples before it is read: throws a usage error.
  virtual std::vector<SampledFrame> sample(const FrameChoice& choice) = 0;

  // Those inside the container, in seconds from the first frame: of this language or, where it is
  // empty, the track that a player would show. Reads the file once more. Throws bad_input where
  // there are none and unsupported where they are pictures.
  virtual std::vector<Subtitle> subtitles(const std::string& language) = 0;

  // `samples` ascend by index. Several streams of one video may run at once.
  virtual FrameStream read(std::vector<SampledFrame> samples, const ReadOptions& options) = 0;
  // For a live source the choice must not need the length: rate, times, indices, all.
  virtual FrameStream read(const FrameChoice& choice, const ReadOptions& options) = 0;
};

// $XDG_CACHE_HOME/kinora/index, else ~/.cache/kinora/index; empty without a home.
std::string default_index_cache();

// A path, URL (http, https, rtsp, …), a folder of pictures, or "-" for standard input. Throws
// not_found, bad_input (not a video; audio only), resource (beyond a limit), network, cancelled.
std::unique_ptr<Video> open_video(const std::string& source, const OpenOptions& options = {});

}  // namespace kinora
