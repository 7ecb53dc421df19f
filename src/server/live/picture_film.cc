#include "server/live/picture_film.h"

namespace kinora::server {
namespace {

unsigned byte_at(std::string_view bytes, size_t at) {
  return at < bytes.size() ? static_cast<unsigned char>(bytes[at]) : 0u;
}

int64_t big_endian(std::string_view bytes, size_t at, int count) {
  int64_t value = 0;
  for (int i = 0; i < count; ++i) value = value << 8 | byte_at(bytes, at + static_cast<size_t>(i));
  return value;
}

// Walks along the segments of a JPEG to the one that has its size.
std::optional<PictureHead> jpeg_head(std::string_view bytes) {
  size_t at = 2;
  while (at + 9 < bytes.size()) {
    if (byte_at(bytes, at) != 0xff) return std::nullopt;
    const unsigned marker = byte_at(bytes, at + 1);
    if (marker == 0xff) {
      ++at;
      continue;
    }
    const bool frame =
        marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
    if (frame) {
      return PictureHead{PictureKind::jpeg, big_endian(bytes, at + 7, 2),
                         big_endian(bytes, at + 5, 2)};
    }
    if (marker == 0xda || marker == 0xd9) return std::nullopt;
    at += 2 + static_cast<size_t>(big_endian(bytes, at + 2, 2));
  }
  return std::nullopt;
}

std::string number(uint64_t value, int bytes) {
  std::string out;
  for (int i = bytes - 1; i >= 0; --i) out += static_cast<char>(value >> (8 * i));
  return out;
}

// An EBML element: its id, its size as eight bytes, its content.
std::string element(uint32_t id, std::string_view content) {
  const int bytes = id > 0xffffff ? 4 : id > 0xffff ? 3 : id > 0xff ? 2 : 1;
  return number(id, bytes) + number(uint64_t{1} << 56 | content.size(), 8) + std::string(content);
}

std::string element(uint32_t id, uint64_t value) { return element(id, number(value, 8)); }

// How Video for Windows names a codec, for those that Matroska has no name for.
std::string bitmap_header(const PictureHead& picture, std::string_view fourcc) {
  const auto little = [](uint64_t value, int bytes) {
    std::string out;
    for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
    return out;
  };
  return little(40, 4) + little(static_cast<uint64_t>(picture.width), 4) +
         little(static_cast<uint64_t>(picture.height), 4) + little(1, 2) + little(24, 2) +
         std::string(fourcc) + std::string(20, '\0');
}

}  // namespace

std::optional<PictureHead> picture_head(std::string_view bytes) {
  if (bytes.starts_with("\x89PNG\r\n\x1a\n") && bytes.size() > 24) {
    return PictureHead{PictureKind::png, big_endian(bytes, 16, 4), big_endian(bytes, 20, 4)};
  }
  if (bytes.starts_with("\xff\xd8\xff")) return jpeg_head(bytes);
  return std::nullopt;
}

std::string film_head(const PictureHead& picture) {
  const std::string about = element(0x4286, uint64_t{1}) + element(0x42f7, uint64_t{1}) +
                            element(0x42f2, uint64_t{4}) + element(0x42f3, uint64_t{8}) +
                            element(0x4282, "matroska") + element(0x4287, uint64_t{4}) +
                            element(0x4285, uint64_t{2});
  const std::string info = element(0x2ad7b1, uint64_t{1000000}) +  // times are milliseconds
                           element(0x4d80, "kinora") + element(0x5741, "kinora");
  const std::string size = element(0xb0, static_cast<uint64_t>(picture.width)) +
                           element(0xba, static_cast<uint64_t>(picture.height));
  const bool jpeg = picture.kind == PictureKind::jpeg;
  const std::string track =
      element(0xd7, uint64_t{1}) + element(0x73c5, uint64_t{1}) + element(0x83, uint64_t{1}) +
      element(0x9c, uint64_t{0}) + element(0x86, jpeg ? "V_MJPEG" : "V_MS/VFW/FOURCC") +
      (jpeg ? "" : element(0x63a2, bitmap_header(picture, "MPNG"))) + element(0xe0, size);
  const std::string segment = number(0x18538067, 4) + number(0x01ffffffffffffff, 8);  // no end
  return element(0x1a45dfa3, about) + segment + element(0x1549a966, info) +
         element(0x1654ae6b, element(0xae, track));
}

std::string film_picture(std::string_view bytes, int64_t milliseconds) {
  // Track 1, at the cluster's own time, a keyframe.
  const std::string block = std::string("\x81\0\0\x80", 4) + std::string(bytes);
  return element(0x1f43b675,
                 element(0xe7, static_cast<uint64_t>(milliseconds)) + element(0xa3, block));
}

}  // namespace kinora::server
