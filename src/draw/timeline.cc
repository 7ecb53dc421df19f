#include "draw/timeline.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "base/file.h"
#include "draw/colours.h"
#include "draw/markup.h"
#include "draw/png_file.h"
#include "draw/text.h"

namespace kinora {
namespace {

constexpr Colour paper = {250, 250, 250};
constexpr Colour ink = {40, 40, 46};
constexpr Colour faint = {224, 224, 228};
constexpr int margin = 10;
constexpr int bar_height = 16;
constexpr int lane_height = bar_height + 8;

std::string stage_of(const std::string& lane) { return lane.substr(0, lane.find(' ')); }

// Where everything stands; both pictures are drawn from it.
struct Layout {
  std::vector<std::string> lanes;
  std::vector<std::string> stages;  // their first words, each once
  double seconds = 0;               // at the right edge
  double tick = 1;                  // seconds between two marks
  int left = 0, top = 0, right = 0, bottom = 0;
  int width = 0, height = 0;

  double x(double time) const { return left + time / seconds * (right - left); }
  int lane(const std::string& name) const {
    return static_cast<int>(std::find(lanes.begin(), lanes.end(), name) - lanes.begin());
  }
  int y(const std::string& name) const { return top + lane(name) * lane_height + 4; }
  Colour colour(const std::string& name) const {
    const auto found = std::find(stages.begin(), stages.end(), stage_of(name));
    return series_colour(static_cast<int>(found - stages.begin()));
  }
};

Layout plan(const std::vector<TimelineBar>& bars, int width) {
  Layout layout;
  int label = 0;
  for (const TimelineBar& bar : bars) {
    layout.seconds = std::max(layout.seconds, bar.end);
    if (layout.lane(bar.lane) < static_cast<int>(layout.lanes.size())) continue;
    layout.lanes.push_back(bar.lane);
    label = std::max(label, text_width(bar.lane));
    const std::string stage = stage_of(bar.lane);
    if (std::find(layout.stages.begin(), layout.stages.end(), stage) == layout.stages.end()) {
      layout.stages.push_back(stage);
    }
  }
  if (!(layout.seconds > 0)) layout.seconds = 1;
  // 1, 2 or 5 times a power of ten, at most ten marks.
  layout.tick = std::pow(10, std::floor(std::log10(layout.seconds / 10)));
  for (const double step : {1.0, 2.0, 5.0, 10.0}) {
    if (layout.seconds / (layout.tick * step) <= 10) {
      layout.tick *= step;
      break;
    }
  }
  layout.left = margin + label + margin;
  layout.top = 2 * margin + text_height();
  layout.width = std::max(width, layout.left + 200);
  layout.right = layout.width - 4 * margin;
  layout.bottom = layout.top + static_cast<int>(layout.lanes.size()) * lane_height;
  layout.height = layout.bottom + text_height() + 2 * margin;
  return layout;
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g s", seconds);
  return text;
}

}  // namespace

Image timeline_image(const std::vector<TimelineBar>& bars, const std::string& title, int width) {
  const Layout layout = plan(bars, width);
  Image image(layout.width, layout.height, paper);
  draw_text(image, margin, margin, title, ink);
  for (int i = 0; i * layout.tick <= layout.seconds; ++i) {
    const int x = static_cast<int>(std::lround(layout.x(i * layout.tick)));
    image.fill({x, layout.top, 1, layout.bottom - layout.top}, faint);
    draw_text(image, x, layout.bottom + margin / 2, seconds_text(i * layout.tick), ink);
  }
  for (const std::string& lane : layout.lanes) {
    draw_text(image, margin, layout.y(lane) + (bar_height - glyph_height) / 2, lane, ink);
  }
  for (const TimelineBar& bar : bars) {
    const int from = static_cast<int>(std::lround(layout.x(bar.begin)));
    const int to = static_cast<int>(std::lround(layout.x(bar.end)));
    // Neighbours stay apart where there is room for a gap.
    const int length = std::max(1, to - from - (to - from > 3 ? 1 : 0));
    image.fill({from, layout.y(bar.lane), length, bar_height}, layout.colour(bar.lane));
  }
  return image;
}

std::string timeline_svg(const std::vector<TimelineBar>& bars, const std::string& title,
                         int width) {
  const Layout layout = plan(bars, width);
  std::string out;
  const auto print = [&](const char* format, auto... values) {
    char text[512];
    std::snprintf(text, sizeof text, format, values...);
    out += text;
  };
  print(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n",
      layout.width, layout.height);
  print("<rect width=\"100%%\" height=\"100%%\" fill=\"#fafafa\"/>\n");
  print("<text x=\"%d\" y=\"%d\" font-weight=\"bold\">", margin, margin + 10);
  out += escape_markup(title) + "</text>\n";
  for (int i = 0; i * layout.tick <= layout.seconds; ++i) {
    const double x = layout.x(i * layout.tick);
    print("<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#e0e0e4\"/>", x, layout.top,
          x, layout.bottom);
    print("<text x=\"%.1f\" y=\"%d\">%s</text>\n", x, layout.bottom + margin + 4,
          seconds_text(i * layout.tick).c_str());
  }
  for (const std::string& lane : layout.lanes) {
    print("<text x=\"%d\" y=\"%d\">", margin, layout.y(lane) + 12);
    out += escape_markup(lane) + "</text>\n";
  }
  for (const TimelineBar& bar : bars) {
    const Colour colour = layout.colour(bar.lane);
    const double from = layout.x(bar.begin);
    print(
        "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"#%02x%02x%02x\" "
        "stroke=\"#fafafa\" stroke-width=\"0.5\"><title>",
        from, layout.y(bar.lane), std::max(0.5, layout.x(bar.end) - from), bar_height, colour.red,
        colour.green, colour.blue);
    out += escape_markup(bar.label);
    print(": %.3f s to %.3f s</title></rect>\n", bar.begin, bar.end);
  }
  return out + "</svg>\n";
}

void check_timeline_path(const std::string& path) {
  if (path.ends_with(".png") || path.ends_with(".svg")) return;
  throw Error(ErrorKind::usage,
              "a timeline is a picture: '" + path + "' should end in .png or .svg");
}

void write_timeline(const std::string& path, const std::vector<TimelineBar>& bars,
                    const std::string& title) {
  check_timeline_path(path);
  if (path.ends_with(".png")) {
    write_png(path, timeline_image(bars, title));
  } else {
    real_files().write(path, timeline_svg(bars, title));
  }
}

}  // namespace kinora
