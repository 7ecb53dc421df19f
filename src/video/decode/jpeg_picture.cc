#include "video/decode/jpeg_picture.h"

#ifdef KINORA_TURBOJPEG
#include <turbojpeg.h>

#include <cstring>
#include <memory>
#include <type_traits>

#include "base/error.h"
#endif

namespace kinora {

#ifdef KINORA_TURBOJPEG
namespace {

struct CloseJpeg {
  void operator()(void* handle) const { tjDestroy(handle); }
};

// Which way up a picture of a folder is.
bool copy_turning(const AVPacket& packet, AVFrame& frame) {
  for (int i = 0; i < packet.side_data_elems; ++i) {
    const AVPacketSideData& data = packet.side_data[i];
    if (data.type != AV_PKT_DATA_DISPLAYMATRIX) continue;
    AVFrameSideData* room = av_frame_new_side_data(&frame, AV_FRAME_DATA_DISPLAYMATRIX, data.size);
    if (room == nullptr) return false;
    std::memcpy(room->data, data.data, data.size);
  }
  return true;
}

}  // namespace

FramePtr decode_jpeg(const AVPacket& packet, const VideoLimits& limits) {
  const std::unique_ptr<void, CloseJpeg> jpeg(tjInitDecompress());
  if (jpeg == nullptr) return nullptr;
  const auto size = static_cast<unsigned long>(packet.size);
  int width = 0, height = 0, sampling = 0, colours = 0;
  if (tjDecompressHeader3(jpeg.get(), packet.data, size, &width, &height, &sampling, &colours) !=
      0) {
    return nullptr;
  }
  const bool rgb = colours == TJCS_RGB || colours == TJCS_YCbCr || colours == TJCS_GRAY;
  if (!rgb || width < 1 || height < 1 || width > limits.max_side || height > limits.max_side ||
      int64_t{width} * height > limits.max_pixels) {
    return nullptr;
  }
  FramePtr frame = make_frame();
  frame->format = AV_PIX_FMT_RGB24;
  frame->width = width;
  frame->height = height;
  if (av_frame_get_buffer(frame.get(), 0) < 0 || !copy_turning(packet, *frame)) {
    throw Error(ErrorKind::resource, "not enough memory to decode a picture");
  }
  const int flags = TJFLAG_ACCURATEDCT | TJFLAG_LIMITSCANS | TJFLAG_STOPONWARNING;
  if (tjDecompress2(jpeg.get(), packet.data, size, frame->data[0], width, frame->linesize[0],
                    height, TJPF_RGB, flags) != 0) {
    return nullptr;
  }
  return frame;
}

#else

FramePtr decode_jpeg(const AVPacket&, const VideoLimits&) { return nullptr; }

#endif

}  // namespace kinora
