// JPEG pictures decoded by libjpeg, as Pillow and torchvision decode them: inverse transforms
// differ from library to library, and with them pixels. Used for still pictures; MJPEG videos are
// FFmpeg's, as they are for those who feed videos to models. Builds without TurboJPEG leave all to
// FFmpeg.
#pragma once

#include "video/ffmpeg_handles.h"
#include "video/limits.h"

namespace kinora {

// The picture as RGB, with the packet's turning, or null where libjpeg does not make an undamaged
// RGB picture within the limits of it: FFmpeg then says what is wrong, or shows what there is.
FramePtr decode_jpeg(const AVPacket& packet, const VideoLimits& limits);

}  // namespace kinora
