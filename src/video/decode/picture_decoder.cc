#include "video/decode/picture_decoder.h"

#include <fmt/format.h>

#include <algorithm>

#include "video/decode/jpeg_picture.h"

namespace kinora {

namespace {

const AVCodec* find_decoder(AVCodecID id) {
  if (id == AV_CODEC_ID_AV1) {
    if (const AVCodec* dav1d = avcodec_find_decoder_by_name("libdav1d")) return dav1d;
  }
  return avcodec_find_decoder(id);
}

}  // namespace

PictureDecoder::PictureDecoder(const AVCodecParameters& parameters, int threads, int reorder_depth,
                               bool show_all, const VideoLimits& limits, bool stills)
    : frame_(make_frame()), limits_(limits), stills_(stills) {
  const AVCodec* decoder = find_decoder(parameters.codec_id);
  if (decoder == nullptr) {
    throw Error(ErrorKind::unsupported,
                fmt::format("no decoder for {} in this FFmpeg: install one that has it",
                            avcodec_get_name(parameters.codec_id)));
  }
  codec_ = own<CodecPtr>(avcodec_alloc_context3(decoder));
  const int copied = avcodec_parameters_to_context(codec_.get(), &parameters);
  codec_->thread_count = threads;
  codec_->thread_type = threads > 1 ? FF_THREAD_FRAME | FF_THREAD_SLICE : 0;
  codec_->has_b_frames = std::max(codec_->has_b_frames, reorder_depth);
  if (show_all && decoder->id == AV_CODEC_ID_H264) codec_->flags |= AV_CODEC_FLAG_OUTPUT_CORRUPT;
  codec_->max_pixels = limits.max_pixels;
  const int opened = copied < 0 ? copied : avcodec_open2(codec_.get(), decoder, nullptr);
  if (opened < 0) {
    // EAGAIN: its threads could not be started.
    const bool scarce = opened == AVERROR(ENOMEM) || opened == AVERROR(EAGAIN);
    throw Error(scarce ? ErrorKind::resource : ErrorKind::bad_input,
                fmt::format("the {} decoder does not accept this stream ({})", decoder->name,
                            ffmpeg_error(opened)));
  }
}

PictureDecoder::Result PictureDecoder::send(AVPacket& packet, int64_t number, const Take& take) {
  if (stills_ && codec_->codec_id == AV_CODEC_ID_MJPEG) {
    if (const FramePtr picture = decode_jpeg(packet, limits_)) {
      picture->pts = number;
      return take(number, *picture) ? Result::more : Result::enough;
    }
  }
  packet.pts = number;
  packet.dts = AV_NOPTS_VALUE;
  packet.duration = 0;
  int sent = avcodec_send_packet(codec_.get(), &packet);
  Result result = receive(take);
  if (sent == AVERROR(EAGAIN) && result != Result::enough) {
    sent = avcodec_send_packet(codec_.get(), &packet);
    result = receive(take);
  }
  if (result == Result::enough) return result;
  return sent < 0 ? Result::broken : result;
}

PictureDecoder::Result PictureDecoder::finish(const Take& take) {
  if (avcodec_send_packet(codec_.get(), nullptr) < 0) return Result::more;
  return receive(take);
}

bool PictureDecoder::is_damaged(const AVFrame& frame) const {
  if (frame.decode_error_flags != 0) return true;
  // Where unvouched pictures are let through, the flag marks those and nothing else.
  const bool vouches = (codec_->flags & AV_CODEC_FLAG_OUTPUT_CORRUPT) == 0;
  return vouches && (frame.flags & AV_FRAME_FLAG_CORRUPT) != 0;
}

void PictureDecoder::restart() { avcodec_flush_buffers(codec_.get()); }

PictureDecoder::Result PictureDecoder::receive(const Take& take) {
  constexpr int max_errors = 64;  // in a row, from one packet
  Result result = Result::more;
  for (int errors = 0; errors < max_errors;) {
    const int got = avcodec_receive_frame(codec_.get(), frame_.get());
    if (got == AVERROR(EAGAIN) || got == AVERROR_EOF) return result;
    if (got == AVERROR(ENOMEM)) {
      throw Error(ErrorKind::resource, "not enough memory to decode a picture");
    }
    if (got < 0) {
      result = Result::broken;
      ++errors;
      continue;
    }
    const bool more = take(frame_->pts, *frame_);
    av_frame_unref(frame_.get());
    if (!more) return Result::enough;
  }
  return result;
}

}  // namespace kinora

#ifdef __SANITIZE_THREAD__
// FFmpeg's libraries are not built with the thread sanitizer, so it does not see how their own
// threads synchronise. The sanitizer's library finds only what is visible.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions() {
  return "race:libavcodec.so\nrace:libavutil.so\n";
}
#endif
