// Words on pictures, set by Cairo in the system's sans-serif face. Text is UTF-8; bytes that are
// none show as a question mark.
#pragma once

#include <string>
#include <string_view>

#include "draw/image.h"

namespace kinora {

struct TextStyle {
  double size = 12;  // pixels of an em
  bool bold = false;
};

// Of the box that a line of text takes, in whole pixels. The height is that of the face, whatever
// the letters.
int text_width(std::string_view text, const TextStyle& style = {});
int text_height(const TextStyle& style = {});
// From the top of that box down to where letters stand.
double text_ascent(const TextStyle& style = {});

// The text, or as much of it as fits into the width with "…" behind.
std::string fit_text(std::string_view text, int width, const TextStyle& style = {});

// Top left corner of the box at (x, y).
void draw_text(Image& image, int x, int y, std::string_view text, Colour colour,
               const TextStyle& style = {});

// "0:07.250", "1:02:03.500"; whole seconds when `decimals` is 0.
std::string time_label(double seconds, int decimals = 3);

}  // namespace kinora
