// FFmpeg's functions, found when they are first called. FFmpeg brings some 130 libraries along;
// loading them takes longer than most of what kinora does without a video, so it waits until one is
// opened. Inside the namespace a call such as av_packet_alloc() finds the object of that name
// below, which stands before FFmpeg's own declaration; nothing links with FFmpeg.
// A function that is missing here is an undefined reference: add it to the list.
#pragma once

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavcodec/bsf.h>
#include <libavformat/avformat.h>
#include <libavutil/avstring.h>
#include <libavutil/dict.h>
#include <libavutil/frame.h>
#include <libavutil/log.h>
#include <libavutil/mem.h>
#include <libavutil/opt.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>
}

#include "base/system/late_function.h"

namespace kinora {

enum class FfmpegLibrary { format, scale };  // the first has libavcodec and libavutil with it

// Loads the library unless that has been done. Throws unsupported where it, or the function, is not
// installed.
void* find_ffmpeg(FfmpegLibrary library, const char* function);
template <FfmpegLibrary library>
void* find_in(const char* function) {
  return find_ffmpeg(library, function);
}

// The type comes from FFmpeg's header; a name can only be repeated by a macro.
#define KINORA_FFMPEG(library, name)                         \
  inline constinit const decltype(late_like(&::name)) name { \
    &find_in<FfmpegLibrary::library>, #name                  \
  }

KINORA_FFMPEG(format, av_bsf_alloc);
KINORA_FFMPEG(format, av_bsf_flush);
KINORA_FFMPEG(format, av_bsf_free);
KINORA_FFMPEG(format, av_bsf_get_by_name);
KINORA_FFMPEG(format, av_bsf_init);
KINORA_FFMPEG(format, av_bsf_receive_packet);
KINORA_FFMPEG(format, av_bsf_send_packet);
KINORA_FFMPEG(format, av_color_space_name);
KINORA_FFMPEG(format, av_dict_free);
KINORA_FFMPEG(format, av_dict_get);
KINORA_FFMPEG(format, av_dict_set);
KINORA_FFMPEG(format, av_find_input_format);
KINORA_FFMPEG(format, av_frame_alloc);
KINORA_FFMPEG(format, av_frame_free);
KINORA_FFMPEG(format, av_frame_get_buffer);
KINORA_FFMPEG(format, av_frame_get_side_data);
KINORA_FFMPEG(format, av_frame_new_side_data);
KINORA_FFMPEG(format, av_frame_ref);
KINORA_FFMPEG(format, av_frame_unref);
KINORA_FFMPEG(format, av_free);
KINORA_FFMPEG(format, av_freep);
KINORA_FFMPEG(format, av_get_pix_fmt_name);
KINORA_FFMPEG(format, av_log_set_level);
KINORA_FFMPEG(format, av_malloc);
KINORA_FFMPEG(format, av_match_list);
KINORA_FFMPEG(format, av_opt_get);
KINORA_FFMPEG(format, av_packet_alloc);
KINORA_FFMPEG(format, av_packet_free);
KINORA_FFMPEG(format, av_packet_new_side_data);
KINORA_FFMPEG(format, av_packet_ref);
KINORA_FFMPEG(format, av_packet_unref);
KINORA_FFMPEG(format, av_parser_close);
KINORA_FFMPEG(format, av_parser_init);
KINORA_FFMPEG(format, av_parser_parse2);
KINORA_FFMPEG(format, av_pix_fmt_count_planes);
KINORA_FFMPEG(format, av_pix_fmt_desc_get);
KINORA_FFMPEG(format, av_probe_input_buffer2);
KINORA_FFMPEG(format, av_probe_input_format);
KINORA_FFMPEG(format, av_read_frame);
KINORA_FFMPEG(format, av_seek_frame);
KINORA_FFMPEG(format, av_strerror);
KINORA_FFMPEG(format, avcodec_alloc_context3);
KINORA_FFMPEG(format, avcodec_decode_subtitle2);
KINORA_FFMPEG(format, avcodec_descriptor_get);
KINORA_FFMPEG(format, avcodec_find_decoder);
KINORA_FFMPEG(format, avcodec_find_decoder_by_name);
KINORA_FFMPEG(format, avcodec_flush_buffers);
KINORA_FFMPEG(format, avcodec_free_context);
KINORA_FFMPEG(format, avcodec_get_name);
KINORA_FFMPEG(format, avcodec_open2);
KINORA_FFMPEG(format, avcodec_parameters_alloc);
KINORA_FFMPEG(format, avcodec_parameters_copy);
KINORA_FFMPEG(format, avcodec_parameters_free);
KINORA_FFMPEG(format, avcodec_parameters_to_context);
KINORA_FFMPEG(format, avcodec_receive_frame);
KINORA_FFMPEG(format, avcodec_send_packet);
KINORA_FFMPEG(format, avformat_alloc_context);
KINORA_FFMPEG(format, avformat_close_input);
KINORA_FFMPEG(format, avformat_find_stream_info);
KINORA_FFMPEG(format, avformat_open_input);
KINORA_FFMPEG(format, avformat_version);
KINORA_FFMPEG(format, avio_alloc_context);
KINORA_FFMPEG(format, avio_closep);
KINORA_FFMPEG(format, avio_context_free);
KINORA_FFMPEG(format, avio_open2);
KINORA_FFMPEG(format, avio_read_partial);
KINORA_FFMPEG(format, avio_seek);
KINORA_FFMPEG(format, avio_size);
KINORA_FFMPEG(format, avsubtitle_free);
#if LIBAVFORMAT_VERSION_INT >= AV_VERSION_INT(60, 15, 100)
KINORA_FFMPEG(format, av_packet_side_data_get);
#else
KINORA_FFMPEG(format, av_stream_get_side_data);
#endif
KINORA_FFMPEG(scale, sws_freeContext);
KINORA_FFMPEG(scale, sws_getCachedContext);
KINORA_FFMPEG(scale, sws_scale);

#undef KINORA_FFMPEG

}  // namespace kinora
