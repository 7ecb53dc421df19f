// A MOV film of as many frames as one likes whose samples are all the same few bytes: four bytes a
// frame on disk, and every one of them can be decoded.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kinora::testing {

// `picture` is a PNG of this size; `rate` frames a second.
inline std::string repeated_film(std::string_view picture, uint32_t width, uint32_t height,
                                 uint32_t frames, uint32_t rate = 25) {
  const auto number = [](uint64_t value, int bytes) {
    std::string out;
    for (int i = bytes - 1; i >= 0; --i) out += static_cast<char>(value >> (8 * i) & 0xff);
    return out;
  };
  const auto box = [&](std::string_view type, const std::string& content) {
    return number(8 + content.size(), 4) + std::string(type) + content;
  };
  const auto zeros = [](size_t count) { return std::string(count, '\0'); };
  const std::string whole = zeros(4), one = number(1, 4);  // a version and flags; a count
  const std::string matrix =
      number(0x10000, 4) + zeros(12) + number(0x10000, 4) + zeros(12) + number(0x40000000, 4);
  const std::string type = box("ftyp", "qt  " + number(0x200, 4) + "qt  ");
  const std::string data = box("mdat", std::string(picture));
  const std::string sample = zeros(6) + number(1, 2) + zeros(16) + number(width, 2) +
                             number(height, 2) + number(0x480000, 4) + number(0x480000, 4) +
                             zeros(4) + number(1, 2) + zeros(32) + number(24, 2) +
                             number(0xffff, 2);
  std::string offsets;
  const std::string offset = number(type.size() + 8, 4);
  offsets.reserve(size_t{frames} * 4);
  for (uint32_t i = 0; i < frames; ++i) offsets += offset;
  const std::string tables = box("stsd", whole + one + box("png ", sample)) +
                             box("stts", whole + one + number(frames, 4) + one) +
                             box("stsc", whole + one + one + one + one) +
                             box("stsz", whole + number(picture.size(), 4) + number(frames, 4)) +
                             box("stco", whole + number(frames, 4) + offsets);
  const std::string references = box("dinf", box("dref", whole + one + box("url ", number(1, 4))));
  const std::string media =
      box("mdhd", whole + zeros(8) + number(rate, 4) + number(frames, 4) + zeros(4)) +
      box("hdlr", whole + "mhlrvide" + zeros(13)) +
      box("minf", box("vmhd", number(1, 4) + zeros(8)) + references + box("stbl", tables));
  const std::string track =
      box("tkhd", number(7, 4) + zeros(8) + one + zeros(4) + number(frames, 4) + zeros(16) +
                      matrix + number(width << 16, 4) + number(height << 16, 4)) +
      box("mdia", media);
  const std::string movie =
      box("mvhd", whole + zeros(8) + number(rate, 4) + number(frames, 4) + number(0x10000, 4) +
                      number(0x100, 2) + zeros(10) + matrix + zeros(24) + number(2, 4)) +
      box("trak", track);
  return type + data + box("moov", movie);
}

}  // namespace kinora::testing
