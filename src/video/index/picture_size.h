// The size that a PNG or JPEG declares, for the message about pictures that FFmpeg refuses to look
// at because of it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "video/video.h"

namespace kinora {

std::optional<FrameSize> declared_picture_size(std::span<const uint8_t> bytes);

}  // namespace kinora
