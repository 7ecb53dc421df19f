#include "draw/text.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "draw/cairo_functions.h"
#include "draw/utf8.h"

namespace kinora {
namespace {

// A surface with the style's face chosen; one pixel is enough to measure on.
class Pen {
 public:
  Pen(int width, int height, const TextStyle& style)
      : surface_(cairo_image_surface_create(CAIRO_FORMAT_A8, width, height)),
        context_(cairo_create(surface_.get())) {
    cairo_select_font_face(context_.get(), "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                           style.bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(context_.get(), style.size);
    if (cairo_status(context_.get()) == CAIRO_STATUS_NO_MEMORY) {
      throw Error(ErrorKind::resource, "not enough memory to draw text");
    }
  }

  double width(const std::string& text) const {
    cairo_text_extents_t box{};
    cairo_text_extents(context_.get(), text.c_str(), &box);
    return std::max(box.x_advance, box.x_bearing + box.width);
  }
  cairo_font_extents_t face() const {
    cairo_font_extents_t box{};
    cairo_font_extents(context_.get(), &box);
    return box;
  }
  void write(double x, double y, const std::string& text) {
    cairo_set_source_rgba(context_.get(), 0, 0, 0, 1);
    cairo_move_to(context_.get(), x, y);
    cairo_show_text(context_.get(), text.c_str());
    cairo_surface_flush(surface_.get());
  }
  // How much of each pixel the text covers, of 255.
  const uint8_t* row(int y) const {
    const int stride = cairo_image_surface_get_stride(surface_.get());
    return cairo_image_surface_get_data(surface_.get()) + static_cast<ptrdiff_t>(y) * stride;
  }

 private:
  SurfacePtr surface_;
  CairoPtr context_;
};

int width_of(const Pen& pen, const std::string& text) {
  // Lines of text longer than any picture are cut by it.
  return static_cast<int>(std::ceil(std::clamp(pen.width(text), 0.0, 65536.0)));
}

uint8_t mixed(uint8_t below, uint8_t above, int share) {
  return static_cast<uint8_t>((below * (255 - share) + above * share + 127) / 255);
}

}  // namespace

int text_width(std::string_view text, const TextStyle& style) {
  if (text.empty()) return 0;
  return width_of(Pen(1, 1, style), clean_utf8(text));
}

int text_height(const TextStyle& style) {
  const cairo_font_extents_t face = Pen(1, 1, style).face();
  return static_cast<int>(std::ceil(face.ascent + face.descent));
}

double text_ascent(const TextStyle& style) { return Pen(1, 1, style).face().ascent; }

std::string fit_text(std::string_view text, int width, const TextStyle& style) {
  const Pen pen(1, 1, style);
  const std::string whole = clean_utf8(text);
  if (width_of(pen, whole) <= width) return whole;
  const std::string dots = "…";
  // The longest beginning that fits, at a whole character.
  size_t fits = 0, beyond = whole.size();
  while (fits + 1 < beyond) {
    const size_t middle = whole_characters(whole, fits + (beyond - fits) / 2);
    if (middle == fits) {
      // The characters in between are longer than half of the distance.
      const size_t next = next_character(whole, fits);
      if (next >= beyond || width_of(pen, whole.substr(0, next) + dots) > width) break;
      fits = next;
    } else if (width_of(pen, whole.substr(0, middle) + dots) <= width) {
      fits = middle;
    } else {
      beyond = middle;
    }
  }
  if (fits == 0 && width_of(pen, dots) > width) return "";
  return whole.substr(0, fits) + dots;
}

void draw_text(Image& image, int x, int y, std::string_view text, Colour colour,
               const TextStyle& style) {
  if (text.empty()) return;
  const std::string clean = clean_utf8(text);
  const Pen measure(1, 1, style);
  const cairo_font_extents_t face = measure.face();
  const int width = std::min(width_of(measure, clean) + 1, image.width() - std::min(x, 0));
  const int height = static_cast<int>(std::ceil(face.ascent + face.descent)) + 1;
  if (width <= 0 || x >= image.width() || y >= image.height() || y + height <= 0) return;
  Pen pen(width, height, style);
  // Letters that stand on whole pixels are sharper.
  pen.write(0, std::round(face.ascent), clean);
  for (int row = std::max(0, -y); row < std::min(height, image.height() - y); ++row) {
    const uint8_t* share = pen.row(row);
    for (int column = std::max(0, -x); column < std::min(width, image.width() - x); ++column) {
      if (share[column] == 0) continue;
      const Colour below = image.at(x + column, y + row);
      image.set(x + column, y + row,
                {mixed(below.red, colour.red, share[column]),
                 mixed(below.green, colour.green, share[column]),
                 mixed(below.blue, colour.blue, share[column])});
    }
  }
}

std::string time_label(double seconds, int decimals) {
  if (!std::isfinite(seconds)) return "?";
  decimals = std::clamp(decimals, 0, 6);
  const double unit = std::pow(10.0, decimals);
  const double limited = std::clamp(std::abs(seconds), 0.0, 1e9);
  const auto ticks = static_cast<long long>(std::llround(limited * unit));
  const auto whole = ticks / static_cast<long long>(unit);
  const auto part = ticks % static_cast<long long>(unit);
  const long long hours = whole / 3600, minutes = whole / 60 % 60, rest = whole % 60;
  char text[64];
  if (hours > 0)
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", hours, minutes, rest);
  else
    std::snprintf(text, sizeof text, "%lld:%02lld", minutes, rest);
  std::string label = text;
  if (decimals > 0) {
    const std::string digits = std::to_string(part);
    label += "." + std::string(static_cast<size_t>(decimals) - digits.size(), '0') + digits;
  }
  return seconds < 0 && ticks > 0 ? "-" + label : label;
}

}  // namespace kinora
