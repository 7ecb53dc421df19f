#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

extern "C" {
#include <libavutil/pixdesc.h>
}

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/files/errno_kind.h"
#include "base/system/freed_memory.h"
#include "video/decode/frame_stream.h"
#include "video/decode/packet_feed.h"
#include "video/decode/snap.h"
#include "video/ffmpeg_compat.h"
#include "video/index/index.h"
#include "video/index/index_cache.h"
#include "video/source/camera.h"
#include "video/source/demuxer.h"
#include "video/source/embedded_subtitles.h"
#include "video/source/image_folder.h"
#include "video/source/live_read.h"
#include "video/source/picture_header.h"
#include "video/source/spool.h"
#include "video/video.h"

namespace kinora {

namespace {

constexpr double rate_tolerance = 1.5;  // longest to shortest frame of a constant rate

int clockwise_degrees(const Orientation& orientation) {
  for (int turns = 0; turns < 4; ++turns) {
    if (Orientation::turned(turns) == orientation) return 90 * turns;
  }
  return orientation.transposed ? 90 : 0;  // mirrored as well
}

void set_size(VideoInfo& info, FrameSize stored, const Orientation& orientation) {
  info.coded_size = stored;
  info.size = orientation.transposed ? FrameSize{stored.height, stored.width} : stored;
  info.rotation = clockwise_degrees(orientation);
}

// What was estimated from sizes and rates is no promise, and where only the file has a length, it
// may be that of the sound.
double promised_duration(const Demuxer& demuxer) {
  const AVFormatContext& format = demuxer.format();
  const AVStream& stream = demuxer.stream();
  const std::string_view container = format.iformat->name;
  const bool own_length = container.starts_with("mov,") || container == "avi";
  if (format.nb_streams > 1 && !own_length) return 0;
  if (format.duration_estimation_method == AVFMT_DURATION_FROM_BITRATE) return 0;
  if (stream.duration > 0) return static_cast<double>(stream.duration) * av_q2d(stream.time_base);
  return format.duration > 0 ? static_cast<double>(format.duration) / AV_TIME_BASE : 0;
}

VideoInfo describe(const Demuxer& demuxer, const Orientation& orientation,
                   const std::string& source) {
  VideoInfo info;
  const AVCodecParameters& parameters = demuxer.parameters();
  info.source = source;
  info.container = demuxer.format().iformat->name;
  info.codec = avcodec_get_name(parameters.codec_id);
  const AVPixelFormat format = static_cast<AVPixelFormat>(parameters.format);
  if (const AVPixFmtDescriptor* pixels = av_pix_fmt_desc_get(format)) {
    info.pixel_format = pixels->name;
    info.bit_depth = pixels->comp[0].depth;
  }
  const int space = raw_value(parameters.color_space), range = raw_value(parameters.color_range);
  const char* matrix = space >= 0 && space < AVCOL_SPC_NB
                           ? av_color_space_name(static_cast<AVColorSpace>(space))
                           : nullptr;
  info.color_matrix = matrix != nullptr ? matrix : "unknown";
  info.color_range = range == AVCOL_RANGE_MPEG   ? "limited"
                     : range == AVCOL_RANGE_JPEG ? "full"
                                                 : "unknown";
  info.has_audio = demuxer.has_audio();
  info.subtitles = list_subtitles(demuxer.format());
  info.promised_duration = promised_duration(demuxer);
  set_size(info, {parameters.width, parameters.height}, orientation);
  return info;
}

void describe_index(const VideoIndex& index, VideoInfo& info) {
  info.frames = index.frames();
  info.duration = index.duration;
  info.fps = index.fps;
  info.start_offset = index.start_offset;
  info.repaired_times = index.repaired_times;
  info.still = info.frames == 1;
  double shortest = index.duration;
  double longest = 0;
  for (size_t i = 1; i < index.times.size(); ++i) {
    const double gap = index.times[i] - index.times[i - 1];
    shortest = std::min(shortest, gap);
    longest = std::max(longest, gap);
  }
  info.variable_rate = index.times.size() > 2 && longest > rate_tolerance * shortest;
  double last_key = -1;
  for (const IndexedPacket& packet : index.packets) {
    info.bytes += packet.size;
    if (packet.frame < 0) {
      ++info.hidden;
      continue;
    }
    if (packet.disposable) ++info.disposable;
    if (!packet.key) continue;
    ++info.keyframes;
    const double time = index.times[static_cast<size_t>(packet.frame)];
    if (last_key >= 0) info.keyframe_gap = std::max(info.keyframe_gap, time - last_key);
    last_key = time;
  }
  if (last_key >= 0) info.keyframe_gap = std::max(info.keyframe_gap, index.duration - last_key);
}

// Photographs keep their orientation inside the picture.
Orientation first_orientation(Demuxer& demuxer) {
  const PacketPtr packet = make_packet();
  if (!demuxer.read(*packet) || packet->size <= 0) return {};
  return picture_orientation({packet->data, static_cast<size_t>(packet->size)});
}

class IndexedVideo : public Video {
 public:
  const VideoInfo& info() override {
    prepare();
    return info_;
  }
  bool live() const override { return false; }

  const std::vector<double>& times() override {
    prepare();
    return index_->times;
  }

  std::vector<SampledFrame> sample(const FrameChoice& choice) override {
    check_choice(choice);
    prepare();
    auto samples = sample_frames(choice, index_->times, index_->duration, options_.limits);
    return choice.snap > 0 ? snap_samples(*index_, choice, std::move(samples)) : samples;
  }

  FrameStream read(std::vector<SampledFrame> samples, const ReadOptions& options) override {
    prepare();
    ParallelRead read;
    read.size =
        choose_size(options, info_.size, static_cast<int64_t>(samples.size()), options_.limits);
    read.index = index_;
    read.samples = std::move(samples);
    read.make_convert = pictures_turn_themselves_
                            ? make_picture_converter(read.size, options.filter)
                            : make_converter(read.size, options.filter, orientation_, info_.still);
    read.open_feed = [this, cancel = options.cancel](const CancelToken& stop) {
      return open_feed(cancel, stop);
    };
    read.limits = options_.limits;
    read.stills = pictures_turn_themselves_ || info_.still;
    read.options = options;
    return FrameStream(start_parallel_read(std::move(read)));
  }

  FrameStream read(const FrameChoice& choice, const ReadOptions& options) override {
    return read(sample(choice), options);
  }

 protected:
  explicit IndexedVideo(const OpenOptions& options) : options_(options) {}

  // Fills the index and what of info_ depends on it. Called once.
  virtual std::shared_ptr<const VideoIndex> index_now() = 0;
  // Must not keep a reference to this video.
  virtual std::unique_ptr<PacketFeed> open_feed(const CancelToken& cancel,
                                                const CancelToken& stop) = 0;

  OpenOptions options_;
  VideoInfo info_;
  Orientation orientation_;
  bool pictures_turn_themselves_ = false;
  std::shared_ptr<const VideoIndex> index_;

 private:
  void prepare() {
    const std::lock_guard lock(mutex_);
    if (index_) return;
    index_ = index_now();
    give_back_freed_memory();
    describe_index(*index_, info_);
  }

  std::mutex mutex_;
};

// The file behind an origin, where its index may be kept; empty where not.
std::string cached_path(const Origin& origin, const OpenOptions& options) {
  constexpr std::string_view scheme = "file:";
  const bool file = origin.url.starts_with(scheme) && !origin.keep && origin.pipe < 0;
  if (options.index_cache.empty() || !file) return "";
  const std::string path = origin.url.substr(scheme.size());
  struct stat status {};
  const bool large = stat(path.c_str(), &status) == 0 && status.st_size > options.index_cache_above;
  return large ? path : "";
}

class FileVideo final : public IndexedVideo {
 public:
  FileVideo(const Origin& origin, const OpenOptions& options)
      : IndexedVideo(options),
        origin_(origin),
        cached_path_(cached_path(origin, options)),
        identity_(cached_path_.empty() ? "" : IndexCache::identify(cached_path_)),
        demuxer_(std::make_unique<Demuxer>(origin, options, options.cancel, CancelToken(), true)) {
    if (const int32_t* matrix = stream_display_matrix(demuxer_->stream())) {
      orientation_ = Orientation::from_display_matrix(matrix);
    }
    info_ = describe(*demuxer_, orientation_, origin.name);
  }

  std::vector<Subtitle> subtitles(const std::string& language) override {
    const double offset = info().start_offset;  // makes the index
    const SubtitleTrack& track = choose_subtitles(info_.subtitles, language, origin_.name);
    Demuxer demuxer(origin_, options_, options_.cancel, CancelToken(), true);
    return read_embedded_subtitles(demuxer, track, offset, origin_.name);
  }

 protected:
  std::shared_ptr<const VideoIndex> index_now() override {
    const IndexCache cache(options_.index_cache);
    if (auto kept = cache.find(cached_path_, identity_)) {
      if (kept->frames() == 1) turn(first_orientation(*demuxer_));
      demuxer_.reset();
      return std::make_shared<VideoIndex>(std::move(*kept));
    }
    const OpenDemuxer again = [this] {
      return std::make_unique<Demuxer>(origin_, options_, options_.cancel, CancelToken(), true);
    };
    const double rate = nominal_rate(demuxer_->stream());
    try {
      // The parser that probing began would cost more than all the rest of the pass.
      if (!origin_.remote && demuxer_->needs_no_parser()) {
        demuxer_.reset();  // long files have large tables: one set of them is enough
        demuxer_ =
            std::make_unique<Demuxer>(origin_, options_, options_.cancel, CancelToken(), false);
      }
      auto index = std::make_shared<VideoIndex>(make_index(*demuxer_, rate, options_, again));
      if (index->frames() == 1) turn(first_orientation(*again()));
      demuxer_.reset();
      cache.keep(cached_path_, identity_, *index);
      return index;
    } catch (const Error& error) {
      // The pass is spent; another call starts a new one.
      demuxer_ = again();
      if (error.kind() != ErrorKind::bad_input) throw;
      throw Error(error.kind(), fmt::format("{}: {}", origin_.name, error.what()));
    }
  }

  std::unique_ptr<PacketFeed> open_feed(const CancelToken& cancel,
                                        const CancelToken& stop) override {
    auto feed =
        std::make_unique<StreamFeed>(*index_, [origin = origin_, options = options_, cancel, stop] {
          return std::make_unique<Demuxer>(origin, options, cancel, stop, false);
        });
    give_back_freed_memory();  // of the tables that FFmpeg made its own from
    return feed;
  }

 private:
  // What the picture says counts only where it says something.
  void turn(const Orientation& orientation) {
    if (orientation == Orientation{}) return;
    orientation_ = orientation;
    set_size(info_, info_.coded_size, orientation_);
  }

  Origin origin_;
  std::string cached_path_;           // where the index may be kept
  std::string identity_;              // of that file, before it was opened
  std::unique_ptr<Demuxer> demuxer_;  // until the index is made
};

class FolderVideo final : public IndexedVideo {
 public:
  FolderVideo(const std::string& folder, const OpenOptions& options)
      : IndexedVideo(options), pictures_(list_pictures(folder)) {
    Origin first;
    first.name = pictures_.front();
    first.url = "file:" + first.name;
    Demuxer demuxer(first, options, options.cancel, CancelToken(), true);
    pictures_turn_themselves_ = true;
    info_ = describe(demuxer, {}, folder);
    info_.container = "folder";
    set_size(info_, info_.coded_size, first_orientation(demuxer));
  }

  std::vector<Subtitle> subtitles(const std::string& language) override {
    choose_subtitles({}, language, info().source);
    return {};
  }

 protected:
  std::shared_ptr<const VideoIndex> index_now() override {
    return std::make_shared<VideoIndex>(folder_index(pictures_.size(), options_.folder_fps));
  }

  std::unique_ptr<PacketFeed> open_feed(const CancelToken& cancel,
                                        const CancelToken& stop) override {
    return std::make_unique<FolderFeed>(pictures_, options_, cancel, stop);
  }

 private:
  std::vector<std::string> pictures_;
};

class LiveVideo final : public Video {
 public:
  LiveVideo(const Origin& origin, const OpenOptions& options)
      : options_(options),
        origin_(origin),
        demuxer_(std::make_unique<Demuxer>(origin, options, options.cancel, CancelToken(), true)) {
    if (const int32_t* matrix = stream_display_matrix(demuxer_->stream())) {
      orientation_ = Orientation::from_display_matrix(matrix);
    }
    info_ = describe(*demuxer_, orientation_, origin.name);
    const AVRational rate = demuxer_->stream().avg_frame_rate;
    if (rate.num > 0 && rate.den > 0) info_.fps = av_q2d(rate);
  }

  const VideoInfo& info() override { return info_; }
  bool live() const override { return true; }
  const std::vector<double>& times() override { return times_; }

  std::vector<Subtitle> subtitles(const std::string&) override {
    throw Error(ErrorKind::unsupported,
                fmt::format("{}: subtitles of a live source are not read", origin_.name));
  }
  std::vector<SampledFrame> sample(const FrameChoice&) override { refuse_samples(); }
  FrameStream read(std::vector<SampledFrame>, const ReadOptions&) override { refuse_samples(); }

  FrameStream read(const FrameChoice& choice, const ReadOptions& options) override {
    LiveRead read;
    read.choice = choice;
    read.size = choose_size(options, info_.size, 0, options_.limits);
    read.make_convert = make_converter(read.size, options.filter, orientation_);
    read.limits = options_.limits;
    read.options = options;
    const LiveSampler check(choice);
    const std::lock_guard lock(mutex_);
    if (!demuxer_) {
      throw Error(ErrorKind::usage,
                  fmt::format("{}: a live source can be read once: open it again", origin_.name));
    }
    read.demuxer = std::move(demuxer_);
    return FrameStream(start_live_read(std::move(read)));
  }

 private:
  [[noreturn]] void refuse_samples() const {
    throw Error(ErrorKind::usage,
                fmt::format("{}: frames of a live source are not known before they come: read it "
                            "with a choice of frames",
                            origin_.name));
  }

  OpenOptions options_;
  Origin origin_;
  VideoInfo info_;
  Orientation orientation_;
  std::vector<double> times_;
  std::mutex mutex_;
  std::unique_ptr<Demuxer> demuxer_;
};

// A descriptor that closes itself.
std::shared_ptr<void> closing(int descriptor) {
  return std::shared_ptr<void>(nullptr, [descriptor](void*) { close(descriptor); });
}

std::string_view scheme_of(std::string_view source) {
  const size_t end = source.find("://");
  return end == std::string_view::npos ? std::string_view() : source.substr(0, end);
}

std::unique_ptr<Video> open_pipe(int descriptor, std::shared_ptr<void> keep,
                                 const std::string& name, const OpenOptions& options) {
  if (!options.live) {
    return std::make_unique<FileVideo>(spool_pipe(descriptor, name, options), options);
  }
  Origin origin;
  origin.name = name;
  origin.pipe = descriptor;
  origin.keep = std::move(keep);
  return std::make_unique<LiveVideo>(origin, options);
}

std::unique_ptr<Video> open_url(const std::string& url, const OpenOptions& options) {
  const std::string_view scheme = scheme_of(url);
  if ((scheme == "http" || scheme == "https") && !options.live) {
    return std::make_unique<FileVideo>(spool_url(url, options), options);
  }
  constexpr std::array<std::string_view, 12> allowed = {
      "http", "https", "rtsp", "rtsps", "rtmp", "rtmps", "rtp", "srt", "udp", "tcp", "tls", "ftp"};
  if (std::find(allowed.begin(), allowed.end(), scheme) == allowed.end()) {
    throw Error(ErrorKind::usage,
                fmt::format("{}: addresses of the kind {}:// are not read", url, scheme));
  }
  Origin origin;
  origin.name = url;
  origin.url = url;
  origin.remote = true;
  return std::make_unique<LiveVideo>(origin, options);
}

std::unique_ptr<Video> open_path(const std::string& path, const OpenOptions& options) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    throw Error(
        kind_of_errno(errno),
        fmt::format("{}: {}", path, errno == ENOENT ? "no such file" : std::strerror(errno)));
  }
  if (S_ISDIR(status.st_mode)) return std::make_unique<FolderVideo>(path, options);
  if (is_camera(status)) {
    Origin origin;
    origin.name = origin.url = path;
    origin.remote = origin.camera = true;
    return std::make_unique<LiveVideo>(origin, options);
  }
  if (!S_ISREG(status.st_mode)) {
    const int descriptor = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (descriptor < 0) {
      throw Error(kind_of_errno(errno), fmt::format("{}: {}", path, std::strerror(errno)));
    }
    const std::shared_ptr<void> keep = closing(descriptor);
    return open_pipe(descriptor, keep, path, options);
  }
  if (status.st_size == 0) {
    throw Error(ErrorKind::bad_input, fmt::format("{}: the file is empty", path));
  }
  Origin origin;
  origin.name = path;
  origin.url = "file:" + path;
  return std::make_unique<FileVideo>(origin, options);
}

}  // namespace

std::unique_ptr<Video> open_video(const std::string& source, const OpenOptions& options) {
  options.cancel.check();
  if (source.empty()) throw Error(ErrorKind::usage, "no video was named");
  if (source == "-") return open_pipe(STDIN_FILENO, nullptr, "standard input", options);
  if (!scheme_of(source).empty()) return open_url(source, options);
  return open_path(source, options);
}

}  // namespace kinora
