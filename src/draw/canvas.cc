#include "draw/canvas.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "draw/markup.h"
#include "draw/png_file.h"
#include "draw/utf8.h"

namespace kinora {
namespace {

class ImageCanvas final : public Canvas {
 public:
  explicit ImageCanvas(Image& image) : image_(image) {}

  void fill(double x, double y, double width, double height, Colour colour,
            const std::string&) override {
    const int left = static_cast<int>(std::lround(x)), top = static_cast<int>(std::lround(y));
    const int right = static_cast<int>(std::lround(x + width));
    const int bottom = static_cast<int>(std::lround(y + height));
    // Whatever is there is seen.
    image_.fill({left, top, std::max(1, right - left), std::max(1, bottom - top)}, colour);
  }
  void text(double x, double y, std::string_view text, Colour colour,
            const TextStyle& style) override {
    draw_text(image_, static_cast<int>(std::lround(x)), static_cast<int>(std::lround(y)), text,
              colour, style);
  }

 private:
  Image& image_;
};

std::string hex(Colour colour) {
  return fmt::format("#{:02x}{:02x}{:02x}", colour.red, colour.green, colour.blue);
}

class SvgCanvas final : public Canvas {
 public:
  explicit SvgCanvas(std::string& out) : out_(out) {}

  void fill(double x, double y, double width, double height, Colour colour,
            const std::string& note) override {
    out_ += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" "
        "fill=\"{}\"",
        x, y, std::max(0.5, width), std::max(0.5, height), hex(colour));
    out_ += note.empty()
                ? std::string("/>\n")
                : fmt::format("><title>{}</title></rect>\n", escape_markup(clean_utf8(note)));
  }
  void text(double x, double y, std::string_view text, Colour colour,
            const TextStyle& style) override {
    out_ += fmt::format(
        "<text x=\"{:.2f}\" y=\"{:.2f}\" font-size=\"{:g}\"{} fill=\"{}\">{}</text>\n", x,
        y + text_ascent(style), style.size, style.bold ? " font-weight=\"bold\"" : "", hex(colour),
        escape_markup(clean_utf8(text)));
  }

 private:
  std::string& out_;
};

}  // namespace

Image chart_image(const Chart& chart) {
  Image image(chart.size.width, chart.size.height, chart.paper);
  ImageCanvas canvas(image);
  chart.paint(canvas);
  return image;
}

std::string chart_svg(const Chart& chart) {
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" font-family=\"DejaVu Sans, Verdana, sans-serif\">\n<rect width=\"100%\" "
      "height=\"100%\" fill=\"{2}\"/>\n",
      chart.size.width, chart.size.height, hex(chart.paper));
  SvgCanvas canvas(out);
  chart.paint(canvas);
  return out + "</svg>\n";
}

void check_chart_path(const std::string& path, const std::string& what) {
  if (path.ends_with(".png") || path.ends_with(".svg")) return;
  throw Error(ErrorKind::usage, what + " is a picture: '" + path + "' should end in .png or .svg");
}

void write_chart(const std::string& path, const Chart& chart, const std::string& what) {
  check_chart_path(path, what);
  if (path.ends_with(".png")) {
    write_png(path, chart_image(chart));
  } else {
    real_files().write(path, chart_svg(chart));
  }
}

}  // namespace kinora
