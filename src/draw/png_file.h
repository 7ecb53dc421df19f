// PNG files, by libpng.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "draw/image.h"

namespace kinora {

// The bytes of a PNG file. `level` is zlib's: 1 fast, 9 small.
std::string encode_png(const Image& image, int level = 3);
std::string encode_png(const uint8_t* rgb, int width, int height, size_t stride, int level = 3);

// Any PNG as 8-bit RGB: palettes, gray and 16 bits converted, transparency over black. Throws
// bad_input for what is not a whole PNG and resource for more than `max_pixels`.
Image decode_png(std::string_view bytes, int64_t max_pixels = int64_t{1} << 26);

// Through a temporary file, so that no half-written picture stays behind.
void write_png(const std::string& path, const Image& image);
Image read_png(const std::string& path);

}  // namespace kinora
