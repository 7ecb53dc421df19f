// Cameras of this machine, which FFmpeg reads with a library of its own.
#pragma once

#include "video/ffmpeg_functions.h"

struct stat;

namespace kinora {

// Whether a device is a camera, or another source of pictures.
bool is_camera(const struct ::stat& status);

// What reads it. Throws unsupported where FFmpeg's libavdevice is not installed.
const AVInputFormat* camera_format();

}  // namespace kinora
