#include "video/index/picture_size.h"

namespace kinora {

namespace {

int64_t big_endian(std::span<const uint8_t> bytes, size_t at, size_t count) {
  int64_t value = 0;
  for (size_t i = 0; i < count; ++i) value = value << 8 | bytes[at + i];
  return value;
}

// Segments are FF, a marker, two bytes of length; C0 to CF but C4, C8 and CC describe the frame.
std::optional<FrameSize> jpeg_size(std::span<const uint8_t> bytes) {
  size_t at = 2;
  while (at + 9 <= bytes.size() && bytes[at] == 0xff) {
    const uint8_t marker = bytes[at + 1];
    const bool frame =
        marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
    if (frame) return FrameSize{big_endian(bytes, at + 7, 2), big_endian(bytes, at + 5, 2)};
    at += 2 + static_cast<size_t>(big_endian(bytes, at + 2, 2));
  }
  return {};
}

}  // namespace

std::optional<FrameSize> declared_picture_size(std::span<const uint8_t> bytes) {
  if (bytes.size() >= 24 && bytes[0] == 0x89 && bytes[1] == 'P' && bytes[2] == 'N') {
    return FrameSize{big_endian(bytes, 16, 4), big_endian(bytes, 20, 4)};
  }
  if (bytes.size() >= 2 && bytes[0] == 0xff && bytes[1] == 0xd8) return jpeg_size(bytes);
  return {};
}

}  // namespace kinora
