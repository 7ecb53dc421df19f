#include "draw/image.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.h"

namespace kinora {
namespace {

constexpr int max_side = 32768;
constexpr int64_t max_pixels = int64_t{1} << 28;

size_t checked_bytes(int width, int height) {
  if (width < 0 || height < 0 || width > max_side || height > max_side ||
      static_cast<int64_t>(width) * height > max_pixels)
    throw Error(ErrorKind::resource, "a picture of " + std::to_string(width) + " × " +
                                         std::to_string(height) +
                                         " pixels is too large to draw; ask for fewer or smaller "
                                         "parts");
  return static_cast<size_t>(width) * static_cast<size_t>(height) * 3;
}

}  // namespace

Image::Image(int width, int height, Colour background)
    : width_(width), height_(height), pixels_(checked_bytes(width, height)) {
  fill({0, 0, width, height}, background);
}

Colour Image::at(int x, int y) const {
  const uint8_t* pixel = pixels_.data() + offset(x, y);
  return {pixel[0], pixel[1], pixel[2]};
}

void Image::set(int x, int y, Colour colour) {
  if (x < 0 || y < 0 || x >= width_ || y >= height_) return;
  uint8_t* pixel = pixels_.data() + offset(x, y);
  pixel[0] = colour.red;
  pixel[1] = colour.green;
  pixel[2] = colour.blue;
}

// The part inside the picture; 64-bit sums, because an area may lie anywhere.
Rectangle Image::clipped(Rectangle area) const {
  const auto clip = [](int begin, int size, int limit) {
    const int64_t low = std::clamp<int64_t>(begin, 0, limit);
    const int64_t high = std::clamp<int64_t>(int64_t{begin} + std::max(size, 0), low, limit);
    return std::pair(static_cast<int>(low), static_cast<int>(high - low));
  };
  const auto [x, width] = clip(area.x, area.width, width_);
  const auto [y, height] = clip(area.y, area.height, height_);
  return {x, y, width, height};
}

void Image::fill(Rectangle area, Colour colour) {
  const Rectangle inside = clipped(area);
  for (int y = inside.y; y < inside.y + inside.height; ++y)
    for (int x = inside.x; x < inside.x + inside.width; ++x) set(x, y, colour);
}

void Image::line(int from_x, int from_y, int to_x, int to_y, Colour colour) {
  const int64_t width = int64_t{to_x} - from_x, height = int64_t{to_y} - from_y;
  const int64_t steps = std::max(std::abs(width), std::abs(height));
  if (steps > 4 * int64_t{max_side}) return;  // far outside: nobody draws such a line on purpose
  // The point after i steps, rounded half away from the start.
  const auto along = [steps](int from, int64_t distance, int64_t i) {
    if (steps == 0) return from;
    const int64_t twice = 2 * distance * i + (distance < 0 ? -steps : steps);
    return static_cast<int>(from + twice / (2 * steps));
  };
  for (int64_t i = 0; i <= steps; ++i)
    set(along(from_x, width, i), along(from_y, height, i), colour);
}

void Image::paste(const uint8_t* pixels, int width, int height, size_t stride, int x, int y) {
  const Rectangle inside = clipped({x, y, width, height});
  for (int row = inside.y; row < inside.y + inside.height; ++row)
    std::memcpy(
        pixels_.data() + offset(inside.x, row),
        pixels + static_cast<size_t>(row - y) * stride + 3 * static_cast<size_t>(inside.x - x),
        3 * static_cast<size_t>(inside.width));
}

}  // namespace kinora
