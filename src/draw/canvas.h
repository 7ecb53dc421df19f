// What charts are painted on, so that one painter makes both kinds of picture: pixels (written as
// PNG) and SVG, in which text stays text and a mark may carry a note that browsers show.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "draw/image.h"
#include "draw/text.h"

namespace kinora {

class Canvas {
 public:
  virtual ~Canvas() = default;
  // An area in pixels; bars between two whole ones are drawn as well as the canvas can.
  virtual void fill(double x, double y, double width, double height, Colour colour,
                    const std::string& note = "") = 0;
  // The top left corner of the text's box.
  virtual void text(double x, double y, std::string_view text, Colour colour,
                    const TextStyle& style = {}) = 0;
};

struct CanvasSize {
  int width = 0;
  int height = 0;
};

// Paints on a canvas whose size is known before.
struct Chart {
  CanvasSize size;
  Colour paper = {255, 255, 255};
  std::function<void(Canvas& canvas)> paint;
};

Image chart_image(const Chart& chart);
std::string chart_svg(const Chart& chart);

// By the ending of the path: .png or .svg. Throws a usage error for any other, which `check` does
// before there is anything to paint; `what` begins the sentence: "a timeline".
void check_chart_path(const std::string& path, const std::string& what);
void write_chart(const std::string& path, const Chart& chart, const std::string& what);

}  // namespace kinora
