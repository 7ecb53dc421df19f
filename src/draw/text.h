// Labels in a built-in fixed-width face of 5 × 7 dots (our own, printable ASCII; any other
// character is a hollow box).
#pragma once

#include <string>
#include <string_view>

#include "draw/image.h"

namespace kinora {

constexpr int glyph_height = 7;
constexpr int glyph_advance = 6;  // 5 dots and one between letters

// Size of a text drawn with dots of `scale` × `scale` pixels.
int text_width(std::string_view text, int scale = 1);
int text_height(int scale = 1);

// Top left corner at (x, y).
void draw_text(Image& image, int x, int y, std::string_view text, Colour colour, int scale = 1);

// "0:07.250", "1:02:03.500"; whole seconds when `decimals` is 0.
std::string time_label(double seconds, int decimals = 3);

}  // namespace kinora
