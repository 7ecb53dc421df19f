#include "video/source/picture_header.h"

#include <algorithm>
#include <cstddef>
#include <optional>

namespace kinora {

namespace {

using Bytes = std::span<const uint8_t>;

bool begins_with(Bytes bytes, std::string_view text, size_t at = 0) {
  return bytes.size() >= at + text.size() &&
         std::equal(text.begin(), text.end(), bytes.begin() + static_cast<ptrdiff_t>(at),
                    [](char a, uint8_t b) { return static_cast<uint8_t>(a) == b; });
}

// A number of `count` bytes; 0 where the file is shorter.
uint32_t number(Bytes bytes, size_t at, size_t count, bool big_endian) {
  if (at > bytes.size() || bytes.size() - at < count) return 0;
  uint32_t value = 0;
  for (size_t i = 0; i < count; ++i) {
    value = value << 8 | bytes[at + (big_endian ? i : count - 1 - i)];
  }
  return value;
}

Bytes from(Bytes bytes, size_t at) { return bytes.subspan(std::min(at, bytes.size())); }

Orientation orientation_numbered(uint32_t exif) {
  switch (exif) {
    case 2:
      return {false, true, false};
    case 3:
      return {false, true, true};
    case 4:
      return {false, false, true};
    case 5:
      return {true, false, false};
    case 6:
      return {true, true, false};
    case 7:
      return {true, true, true};
    case 8:
      return {true, false, true};
    default:
      return {};
  }
}

// Tag 274 of the first directory of TIFF data, which EXIF data are.
uint32_t tiff_orientation(Bytes tiff) {
  const bool big = begins_with(tiff, "MM");
  if (!big && !begins_with(tiff, "II")) return 1;
  if (number(tiff, 2, 2, big) != 42) return 1;
  const size_t directory = number(tiff, 4, 4, big);
  const uint32_t entries = number(tiff, directory, 2, big);
  for (uint32_t i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + size_t{12} * i;
    if (entry + 12 > tiff.size()) return 1;
    const bool is_short = number(tiff, entry + 2, 2, big) == 3;
    if (number(tiff, entry, 2, big) == 274 && is_short) return number(tiff, entry + 8, 2, big);
  }
  return 1;
}

// In a JPEG's segment and in some WebP files these six bytes stand before the
// data.
Bytes without_mark(Bytes exif) {
  return begins_with(exif, std::string_view("Exif\0\0", 6)) ? from(exif, 6) : exif;
}

Bytes jpeg_exif(Bytes bytes) {
  for (size_t at = 2; at + 4 <= bytes.size() && bytes[at] == 0xff;) {
    const uint8_t marker = bytes[at + 1];
    if (marker == 0xff) {  // padding
      ++at;
      continue;
    }
    if (marker == 0xda || marker == 0xd9) break;  // the picture itself, or its end
    const size_t size = number(bytes, at + 2, 2, true);
    if (size < 2) break;
    const Bytes body = from(bytes, at + 4);
    if (marker == 0xe1 && begins_with(body, std::string_view("Exif\0\0", 6))) {
      return body.first(std::min(body.size(), size - 2));
    }
    at += 2 + size;
  }
  return {};
}

// Chunks of PNG (size, name, data, checksum) or RIFF (name, size, data, to an
// even number).
Bytes chunk(Bytes bytes, size_t at, std::string_view name, bool png) {
  while (at + 8 <= bytes.size()) {
    const size_t size = number(bytes, png ? at : at + 4, 4, png);
    const Bytes body = from(bytes, at + 8);
    if (begins_with(bytes, name, png ? at + 4 : at)) return body.first(std::min(body.size(), size));
    at += 8 + size + (png ? 4 : size % 2);
  }
  return {};
}

bool is_webp(Bytes bytes) { return begins_with(bytes, "RIFF") && begins_with(bytes, "WEBP", 8); }

}  // namespace

Orientation picture_orientation(std::span<const uint8_t> bytes) {
  Bytes exif;
  if (begins_with(bytes, "\xff\xd8")) {
    exif = jpeg_exif(bytes);
  } else if (begins_with(bytes, "\x89PNG\r\n\x1a\n")) {
    exif = chunk(bytes, 8, "eXIf", true);
  } else if (is_webp(bytes)) {
    exif = chunk(bytes, 12, "EXIF", false);
  } else {
    exif = bytes;  // TIFF, if anything
  }
  return orientation_numbered(tiff_orientation(without_mark(exif)));
}

std::string_view special_picture(std::span<const uint8_t> head) {
  constexpr uint8_t animation = 0x02;
  if (is_webp(head) && begins_with(head, "VP8X", 12) && head.size() > 20 &&
      (head[20] & animation) != 0) {
    return "animated WebP";
  }
  if (begins_with(head, "ftyp", 4)) {
    for (const char* brand : {"heic", "heix", "heim", "heis", "hevc", "mif1", "msf1"}) {
      if (begins_with(head, brand, 8)) return "HEIC";
    }
    if (begins_with(head, "avif", 8) || begins_with(head, "avis", 8)) return "AVIF";
  }
  return "";
}

}  // namespace kinora
