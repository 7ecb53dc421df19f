// An RGB picture in memory and the simplest marks on it. Everything outside the picture is clipped.
// Used for contact sheets, heat maps and timelines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kinora {

struct Colour {
  uint8_t red = 0;
  uint8_t green = 0;
  uint8_t blue = 0;
  bool operator==(const Colour&) const = default;
};

// Left and top edge, and the size; may reach beyond the picture.
struct Rectangle {
  int x = 0;
  int y = 0;
  int width = 0;
  int height = 0;
};

class Image {
 public:
  // Sides of 0 to 32768 pixels, at most 2^28 pixels; throws a resource error beyond.
  Image(int width, int height, Colour background = {});

  int width() const { return width_; }
  int height() const { return height_; }
  // Packed RGB, no padding between rows.
  uint8_t* row(int y) { return pixels_.data() + offset(0, y); }
  const uint8_t* row(int y) const { return pixels_.data() + offset(0, y); }
  const std::vector<uint8_t>& pixels() const { return pixels_; }

  Colour at(int x, int y) const;          // must be inside
  void set(int x, int y, Colour colour);  // ignored outside
  void fill(Rectangle area, Colour colour);
  // From one end to the other, both included; one pixel wide.
  void line(int from_x, int from_y, int to_x, int to_y, Colour colour);
  // Packed RGB pixels whose rows are `stride` bytes apart, with their top left corner at (x, y).
  void paste(const uint8_t* pixels, int width, int height, size_t stride, int x, int y);

 private:
  size_t offset(int x, int y) const {
    return (static_cast<size_t>(y) * static_cast<size_t>(width_) + static_cast<size_t>(x)) * 3;
  }
  Rectangle clipped(Rectangle area) const;

  int width_;
  int height_;
  std::vector<uint8_t> pixels_;
};

}  // namespace kinora
