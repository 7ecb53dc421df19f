// A PNG of any size that is small on disk: one bit a pixel, all white.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace kinora::testing {

inline void write_white_png(const std::string& path, uint32_t width, uint32_t height) {
  const auto number = [](uint32_t value) {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xff);
    return bytes;
  };
  std::ofstream out(path, std::ios::binary);
  const auto chunk = [&](const std::string& type, const std::string& data) {
    const std::string body = type + data;
    const auto* bytes = reinterpret_cast<const Bytef*>(body.data());
    out << number(static_cast<uint32_t>(data.size())) << body
        << number(static_cast<uint32_t>(::crc32(0, bytes, static_cast<uInt>(body.size()))));
  };
  std::string row(1 + (width + 7) / 8, '\xff');
  row[0] = 0;  // filter: none
  std::string pixels;
  for (uint32_t y = 0; y < height; ++y) pixels += row;
  std::string packed(::compressBound(pixels.size()), '\0');
  uLongf size = packed.size();
  ::compress2(reinterpret_cast<Bytef*>(packed.data()), &size,
              reinterpret_cast<const Bytef*>(pixels.data()), pixels.size(), 9);
  packed.resize(size);
  out << "\x89PNG\r\n\x1a\n";
  chunk("IHDR", number(width) + number(height) + std::string("\x01\x00\x00\x00\x00", 5));
  chunk("IDAT", packed);
  chunk("IEND", "");
}

}  // namespace kinora::testing
