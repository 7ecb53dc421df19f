// Owning handles for FFmpeg's objects. No other file of video/ frees anything by hand.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "base/error.h"
#include "video/ffmpeg_functions.h"

namespace kinora {

struct FfmpegDeleter {
  void operator()(AVFormatContext* format) const { avformat_close_input(&format); }
  void operator()(AVCodecContext* codec) const { avcodec_free_context(&codec); }
  void operator()(AVCodecParserContext* parser) const { av_parser_close(parser); }
  void operator()(AVCodecParameters* parameters) const { avcodec_parameters_free(&parameters); }
  void operator()(AVBSFContext* filter) const { av_bsf_free(&filter); }
  void operator()(AVPacket* packet) const { av_packet_free(&packet); }
  void operator()(AVFrame* frame) const { av_frame_free(&frame); }
  void operator()(AVDictionary* dictionary) const { av_dict_free(&dictionary); }
  // Our own input context. libavformat may have replaced its buffer, so both are freed together.
  void operator()(AVIOContext* io) const {
    av_freep(&io->buffer);
    avio_context_free(&io);
  }
};

struct OpenedInputDeleter {
  void operator()(AVIOContext* io) const { avio_closep(&io); }
};

using FormatPtr = std::unique_ptr<AVFormatContext, FfmpegDeleter>;
using CodecPtr = std::unique_ptr<AVCodecContext, FfmpegDeleter>;
using ParserPtr = std::unique_ptr<AVCodecParserContext, FfmpegDeleter>;
using ParametersPtr = std::unique_ptr<AVCodecParameters, FfmpegDeleter>;
using FilterPtr = std::unique_ptr<AVBSFContext, FfmpegDeleter>;
using PacketPtr = std::unique_ptr<AVPacket, FfmpegDeleter>;
using FramePtr = std::unique_ptr<AVFrame, FfmpegDeleter>;
using OwnInputPtr = std::unique_ptr<AVIOContext, FfmpegDeleter>;  // made by avio_alloc_context
using OpenedInputPtr = std::unique_ptr<AVIOContext, OpenedInputDeleter>;  // by avio_open2

// FFmpeg's makers return null when memory is short.
template <typename Handle>
Handle own(typename Handle::pointer made) {
  if (made == nullptr) throw Error(ErrorKind::resource, "not enough memory to read the video");
  return Handle(made);
}

inline PacketPtr make_packet() { return own<PacketPtr>(av_packet_alloc()); }
inline FramePtr make_frame() { return own<FramePtr>(av_frame_alloc()); }

inline ParametersPtr copy_parameters(const AVCodecParameters& from) {
  ParametersPtr copy = own<ParametersPtr>(avcodec_parameters_alloc());
  if (avcodec_parameters_copy(copy.get(), &from) < 0) {
    throw Error(ErrorKind::resource, "not enough memory to read the video");
  }
  return copy;
}

// What a subtitle decoder fills in.
struct SubtitleEvent {
  AVSubtitle value{};
  SubtitleEvent() = default;
  SubtitleEvent(const SubtitleEvent&) = delete;
  SubtitleEvent& operator=(const SubtitleEvent&) = delete;
  ~SubtitleEvent() { avsubtitle_free(&value); }
};

// FFmpeg writes to the terminal by default; what matters reaches the caller as errors and reports.
inline void silence_ffmpeg() {
  static std::once_flag once;
  std::call_once(once, [] { av_log_set_level(AV_LOG_QUIET); });
}

// FFmpeg's own words for an error number.
inline std::string ffmpeg_error(int code) {
  char text[AV_ERROR_MAX_STRING_SIZE] = {};
  av_strerror(code, text, sizeof text);
  return text;
}

}  // namespace kinora
