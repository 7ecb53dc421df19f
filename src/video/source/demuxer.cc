#include "video/source/demuxer.h"

#include <fmt/format.h>

extern "C" {
#include <libavutil/pixdesc.h>
}

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "video/index/picture_size.h"
#include "video/source/camera.h"
#include "video/source/file_input.h"
#include "video/source/picture_header.h"
#include "video/source/pipe_input.h"

namespace kinora {

namespace {

constexpr double local_patience = 60;  // seconds: a broken file system, or a demuxer that circles
constexpr int max_broken_reads = 256;  // in a row

// Codecs that tell their size from headers while probing; the others decode a whole picture for it.
bool probes_without_decoding(AVCodecID codec) {
  switch (codec) {
    case AV_CODEC_ID_H264:
    case AV_CODEC_ID_HEVC:
    case AV_CODEC_ID_PNG:
    case AV_CODEC_ID_MJPEG:
    case AV_CODEC_ID_VP8:
    case AV_CODEC_ID_VP9:
    case AV_CODEC_ID_AV1:
      return true;
    default:
      return false;
  }
}

bool is_too_large(FrameSize size, const VideoLimits& limits) {
  return size.width > limits.max_side || size.height > limits.max_side ||
         size.width * size.height > limits.max_pixels;
}

// Formats that are lists of other files: a hostile one could name any file of this machine.
bool is_file_list(std::string_view format) {
  return format == "concat" || format == "sdp" || format.starts_with("hls") || format == "dash" ||
         format == "imf";
}

std::string local_path(std::string_view url) {
  constexpr std::string_view scheme = "file:";
  return std::string(url.starts_with(scheme) ? url.substr(scheme.size()) : url);
}

}  // namespace

Demuxer::Demuxer(const Origin& origin, const OpenOptions& options, const CancelToken& cancel,
                 const CancelToken& stop, bool probe)
    : origin_(origin),
      options_(options),
      watch_(cancel, stop),
      fence_(origin.remote ? origin.url : "", options.limits.other_hosts) {
  silence_ffmpeg();
  open(probe);
}

Demuxer::~Demuxer() {
  // Closing a network source may wait for an answer, too.
  watch_.allow(1);
}

double Demuxer::patience(double remote_seconds) const {
  return origin_.remote || origin_.pipe >= 0 ? remote_seconds : local_patience;
}

void Demuxer::fail(int code, const char* doing) const {
  if (watch_.cancelled()) throw Error(ErrorKind::cancelled, "cancelled");
  const bool waits = origin_.remote || origin_.pipe >= 0;
  if (!fence_.refused().empty()) {
    throw Error(
        ErrorKind::bad_input,
        fmt::format(
            "{}: it leads to {}, which is refused: {}", origin_.name, fence_.refused(),
            waits ? "a remote source must stay on its own host" : "a file may not open others"));
  }
  if (code == AVERROR_EXIT || code == AVERROR(ETIMEDOUT)) {
    throw Error(waits ? ErrorKind::network : ErrorKind::bad_input,
                fmt::format("{}: no data for too long while {}", origin_.name, doing));
  }
  if (code == AVERROR(ENOENT)) {
    throw Error(ErrorKind::not_found, fmt::format("{}: no such file", origin_.name));
  }
  if (!waits && (code == AVERROR(EACCES) || code == AVERROR(EPERM))) {
    throw Error(ErrorKind::not_found, fmt::format("{}: permission denied", origin_.name));
  }
  if (code == AVERROR(ENOMEM)) {
    throw Error(ErrorKind::resource,
                fmt::format("{}: not enough memory while {}", origin_.name, doing));
  }
  if (code == AVERROR_INVALIDDATA) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: not a video or picture that FFmpeg can read", origin_.name));
  }
  throw Error(waits ? ErrorKind::network : ErrorKind::bad_input,
              fmt::format("{}: {} ({})", origin_.name, ffmpeg_error(code), doing));
}

void Demuxer::open(bool probe) {
  watch_.allow(patience(options_.open_timeout));
  std::string url = origin_.url;
  AVDictionary* settings = nullptr;
  const AVInputFormat* known = nullptr;
  if (origin_.pipe >= 0) {
    pipe_ = std::make_unique<PipeInput>(origin_.pipe, watch_, options_.stall_timeout);
    url.clear();
  } else if (!origin_.remote) {
    // Without a name FFmpeg goes by the content: a number or a star in a name is no pattern then,
    // and an extension cannot mislead.
    file_ = std::make_unique<FileInput>(local_path(url), origin_.name, watch_);
    url.clear();
    refuse_special(special_picture(file_->head(32)));
    known = find_format(*file_->context());
  } else if (origin_.camera) {
    known = camera_format();
  } else {
    if (url.starts_with("rtsp")) av_dict_set(&settings, "rtsp_transport", "tcp", 0);
    av_dict_set(&settings, "protocol_whitelist", Fence::protocols(), 0);
    // A connection that serves for the next part, too, would lead past the fence.
    av_dict_set(&settings, "http_persistent", "0", 0);
  }
  AVFormatContext* format = avformat_alloc_context();
  if (format == nullptr) throw Error(ErrorKind::resource, "not enough memory to open a video");
  format->interrupt_callback = {&Watch::ask, &watch_};
  fence_.guard(*format);
  if (pipe_) {
    format->pb = pipe_->context();
    format->fps_probe_size = 1;  // what comes slowly is not waited for to know its rate
  }
  if (file_) format->pb = file_->context();
  // On failure FFmpeg frees the context.
  const int opened = avformat_open_input(&format, url.c_str(), known, &settings);
  std::unique_ptr<AVDictionary, FfmpegDeleter> unused(settings);
  if (opened < 0) fail(opened, "opening it");
  format_.reset(format);
  if (!origin_.remote && is_file_list(format_->iformat->name)) refuse_list(format_->iformat->name);

  if (probe || !self_describing()) {
    const std::string max_pixels = std::to_string(options_.limits.max_pixels);
    std::vector<AVDictionary*> codec_settings(format_->nb_streams, nullptr);
    for (unsigned i = 0; i < format_->nb_streams; ++i) {
      av_dict_set(&codec_settings[i], "threads", "1", 0);
      if (probes_without_decoding(format_->streams[i]->codecpar->codec_id)) continue;
      av_dict_set(&codec_settings[i], "max_pixels", max_pixels.c_str(), 0);
    }
    watch_.allow(patience(options_.open_timeout));
    const int probed = avformat_find_stream_info(format_.get(), codec_settings.data());
    for (AVDictionary*& one : codec_settings) av_dict_free(&one);
    if (watch_.give_up()) fail(AVERROR_EXIT, "looking into it");
    if (probed < 0) fail(probed, "looking into it");
  }
  select_stream();
  if (!probe && needs_no_parser()) format_->flags |= AVFMT_FLAG_NOPARSE;
  if (probe || !self_describing()) check_size();
  add_filter();
}

const AVInputFormat* Demuxer::find_format(AVIOContext& input) const {
  const AVInputFormat* found = nullptr;
  const int probed = av_probe_input_buffer2(&input, &found, "", nullptr, 0, 0);
  if (probed < 0) fail(probed, "opening it");
  // Before it is opened, which is when it would look for the others.
  if (is_file_list(found->name)) refuse_list(found->name);
  return found;
}

// AVIF pictures are videos of one frame to FFmpeg, where it has a decoder.
void Demuxer::refuse_special(std::string_view picture) const {
  if (picture.empty() || picture == "AVIF") return;
  throw Error(ErrorKind::unsupported,
              fmt::format("{}: {} pictures are not read; convert it to PNG, JPEG or a video",
                          origin_.name, picture));
}

void Demuxer::refuse_list(const char* format) const {
  throw Error(ErrorKind::bad_input,
              fmt::format("{}: a list of other files ({}), not a video: name the videos themselves",
                          origin_.name, format));
}

bool Demuxer::self_describing() const {
  const std::string_view name = format_->iformat->name;
  return name.starts_with("mov,") || name.starts_with("matroska");
}

bool Demuxer::needs_no_parser() const {
  if (!self_describing()) return false;
  switch (stream_->codecpar->codec_id) {
    case AV_CODEC_ID_H264:
    case AV_CODEC_ID_HEVC:
    case AV_CODEC_ID_VP8:
    case AV_CODEC_ID_VP9:
    case AV_CODEC_ID_AV1:
      return true;
    default:
      return false;
  }
}

void Demuxer::select_stream() {
  int chosen = -1;
  bool cover = false;
  for (unsigned i = 0; i < format_->nb_streams; ++i) {
    const AVStream& stream = *format_->streams[i];
    if (stream.codecpar->codec_type != AVMEDIA_TYPE_VIDEO) continue;
    if ((stream.disposition & AV_DISPOSITION_ATTACHED_PIC) != 0) {
      cover = true;
      continue;
    }
    const bool better =
        chosen < 0 || ((stream.disposition & AV_DISPOSITION_DEFAULT) != 0 &&
                       (format_->streams[chosen]->disposition & AV_DISPOSITION_DEFAULT) == 0);
    if (better) chosen = static_cast<int>(i);
  }
  if (chosen < 0) {
    const bool sound = has_audio();
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: no video in it{}", origin_.name,
                            sound && cover ? ", only sound and a cover picture"
                            : sound        ? ", only sound"
                                           : ""));
  }
  keep_only(chosen);
}

void Demuxer::keep_only(int stream) {
  for (unsigned i = 0; i < format_->nb_streams; ++i) {
    format_->streams[i]->discard =
        static_cast<int>(i) == stream ? AVDISCARD_DEFAULT : AVDISCARD_ALL;
  }
  stream_ = format_->streams[stream];
}

void Demuxer::turn_to(int stream) {
  filter_.reset();
  keep_only(stream);
}

void Demuxer::check_size() {
  const VideoLimits& limits = options_.limits;
  FrameSize size{stream_->codecpar->width, stream_->codecpar->height};
  if (size.width <= 0 || size.height <= 0) {
    const PacketPtr packet = make_packet();
    std::optional<FrameSize> declared;
    if (read_unfiltered(*packet) && packet->size > 0) {
      declared = declared_picture_size({packet->data, static_cast<size_t>(packet->size)});
    }
    if (!declared || !is_too_large(*declared, limits)) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("{}: no picture size in it (damaged, or beyond {} pixels)",
                              origin_.name, limits.max_pixels));
    }
    size = *declared;
  }
  if (is_too_large(size, limits)) {
    throw Error(ErrorKind::resource,
                fmt::format("{}: pictures of {} × {}, but the limit is {} a side and {} pixels: "
                            "scale it down or raise the limits{}",
                            origin_.name, size.width, size.height, limits.max_side,
                            limits.max_pixels, limits.how_to_raise));
  }
}

// Some AVI files pack two MPEG-4 pictures into one packet and an empty one behind; a filter of
// FFmpeg puts them apart, so that packet and picture are one again.
void Demuxer::add_filter() {
  if (stream_->codecpar->codec_id != AV_CODEC_ID_MPEG4) return;
  const AVBitStreamFilter* unpack = av_bsf_get_by_name("mpeg4_unpack_bframes");
  if (unpack == nullptr) return;
  AVBSFContext* filter = nullptr;
  if (av_bsf_alloc(unpack, &filter) < 0) return;
  filter_.reset(filter);
  filter_->time_base_in = stream_->time_base;
  if (avcodec_parameters_copy(filter_->par_in, stream_->codecpar) < 0 ||
      av_bsf_init(filter_.get()) < 0) {
    filter_.reset();
  }
}

const AVCodecParameters& Demuxer::parameters() const {
  return filter_ ? *filter_->par_out : *stream_->codecpar;
}

bool Demuxer::has_audio() const {
  for (unsigned i = 0; i < format_->nb_streams; ++i) {
    if (format_->streams[i]->codecpar->codec_type == AVMEDIA_TYPE_AUDIO) return true;
  }
  return false;
}

bool Demuxer::read(AVPacket& packet) {
  av_packet_unref(&packet);
  if (!filter_) return read_unfiltered(packet);
  while (true) {
    const int got = av_bsf_receive_packet(filter_.get(), &packet);
    if (got == 0) return true;
    if (got == AVERROR_EOF || filter_drained_) return false;
    if (!read_unfiltered(packet)) {
      filter_drained_ = true;
      av_bsf_send_packet(filter_.get(), nullptr);
    } else if (av_bsf_send_packet(filter_.get(), &packet) < 0) {
      av_packet_unref(&packet);
    }
  }
}

bool Demuxer::read_unfiltered(AVPacket& packet) {
  int broken = 0;
  watch_.allow(patience(options_.stall_timeout));
  while (true) {
    av_packet_unref(&packet);
    const int got = av_read_frame(format_.get(), &packet);
    if (got == AVERROR_EOF && fence_.refused().empty()) return false;
    if (watch_.cancelled()) fail(AVERROR_EXIT, "reading it");
    if (got == AVERROR(EAGAIN)) {
      if (watch_.late()) fail(AVERROR_EXIT, "reading it");
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      continue;
    }
    if (got == AVERROR_EXIT || (got < 0 && origin_.remote)) fail(got, "reading it");
    if (got < 0) {
      if (++broken < max_broken_reads && got == AVERROR_INVALIDDATA) continue;
      ended_badly_ = true;
      return false;
    }
    if (packet.stream_index != stream_->index) {
      // A stream that appeared after opening.
      format_->streams[packet.stream_index]->discard = AVDISCARD_ALL;
      continue;
    }
    if (packet.size > options_.limits.max_packet_bytes) {
      throw Error(ErrorKind::resource,
                  fmt::format("{}: a packet of {} bytes, but the limit is {}: raise the limits{}",
                              origin_.name, packet.size, options_.limits.max_packet_bytes,
                              options_.limits.how_to_raise));
    }
    return true;
  }
}

bool Demuxer::seek_time(int64_t timestamp) {
  watch_.allow(patience(options_.stall_timeout));
  if (filter_) av_bsf_flush(filter_.get());
  filter_drained_ = false;
  return av_seek_frame(format_.get(), stream_->index, timestamp, AVSEEK_FLAG_BACKWARD) >= 0;
}

bool Demuxer::seek_byte(int64_t position) {
  watch_.allow(patience(options_.stall_timeout));
  if (filter_) av_bsf_flush(filter_.get());
  filter_drained_ = false;
  return av_seek_frame(format_.get(), stream_->index, position, AVSEEK_FLAG_BYTE) >= 0;
}

}  // namespace kinora
