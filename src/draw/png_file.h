// Writes PNG files, by libpng.
#pragma once

#include <cstdint>
#include <string>

#include "draw/image.h"

namespace kinora {

// The bytes of a PNG file. `level` is zlib's: 1 fast, 9 small.
std::string encode_png(const Image& image, int level = 3);
std::string encode_png(const uint8_t* rgb, int width, int height, size_t stride, int level = 3);

// Through a temporary file, so that no half-written picture stays behind.
void write_png(const std::string& path, const Image& image);

}  // namespace kinora
