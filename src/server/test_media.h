// Small videos and pictures as requests bring them along, for the tests of this folder.
#pragma once

#include <string>

#include "base/random.h"
#include "draw/png_file.h"
#include "server/live/picture_film.h"

namespace kinora::server {

inline std::string encode_base64(const std::string& bytes) {
  static const char* digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) {
      bits = bits << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    }
    for (size_t k = 0; k < 4; ++k) {
      out += i + k > bytes.size() ? '=' : digits[bits >> (18 - 6 * k) & 63];
    }
  }
  return out;
}

// A PNG of noise.
inline std::string picture_bytes(int seed) {
  Random random(static_cast<uint64_t>(seed));
  Image image(56, 56);
  for (int y = 0; y < image.height(); ++y) {
    for (int x = 0; x < image.width() * 3; ++x) {
      image.row(y)[x] = static_cast<uint8_t>(random.next());
    }
  }
  return encode_png(image);
}

// A film of such pictures, two a second.
inline std::string film_bytes(int pictures, int seed = 0) {
  std::string bytes = film_head(*picture_head(picture_bytes(seed)));
  for (int i = 0; i < pictures; ++i) bytes += film_picture(picture_bytes(seed + i), 500 * i);
  return bytes;
}

inline std::string picture_url(int seed) {
  return "data:image/png;base64," + encode_base64(picture_bytes(seed));
}

// Ready frames.
inline std::string film_url(int frames, int seed) {
  std::string url = "data:video/jpeg;base64,";
  for (int i = 0; i < frames; ++i) {
    url += (i > 0 ? "," : "") + encode_base64(picture_bytes(1000 * seed + i));
  }
  return url;
}

}  // namespace kinora::server
