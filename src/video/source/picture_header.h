// What the bytes of a still picture say before it is decoded: which way up it
// is, and whether it is of a kind that FFmpeg shows only in part. Used where
// pictures are opened.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "video/convert/convert.h"

namespace kinora {

// The orientation in the EXIF data of a JPEG, PNG, WebP or TIFF file; upright
// where it has none, or none that makes sense. Reads nothing outside of
// `bytes`.
Orientation picture_orientation(std::span<const uint8_t> bytes);

// "animated WebP", "HEIC", "AVIF" for files that begin like one; empty for all
// others.
std::string_view special_picture(std::span<const uint8_t> head);

}  // namespace kinora
