#include "draw/timeline.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "draw/colours.h"
#include "draw/text.h"

namespace kinora {
namespace {

constexpr Colour paper = {250, 250, 250};
constexpr Colour ink = {40, 40, 46};
constexpr Colour faint = {224, 224, 228};
constexpr int margin = 12;
constexpr int bar_height = 16;
constexpr int lane_height = bar_height + 8;
constexpr TextStyle heading{14, true};
constexpr TextStyle words{12, false};

std::string stage_of(const std::string& lane) { return lane.substr(0, lane.find(' ')); }

// Where everything stands.
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

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g s", seconds);
  return text;
}

Layout plan(const std::vector<TimelineBar>& bars, int width) {
  Layout layout;
  int label = 0;
  for (const TimelineBar& bar : bars) {
    layout.seconds = std::max(layout.seconds, bar.end);
    if (layout.lane(bar.lane) < static_cast<int>(layout.lanes.size())) continue;
    layout.lanes.push_back(bar.lane);
    label = std::max(label, text_width(bar.lane, words));
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
  layout.top = 2 * margin + text_height(heading);
  layout.width = std::max(width, layout.left + 200);
  layout.right = layout.width - margin - text_width(seconds_text(layout.seconds), words);
  layout.bottom = layout.top + static_cast<int>(layout.lanes.size()) * lane_height;
  layout.height = layout.bottom + text_height(words) + 2 * margin;
  return layout;
}

}  // namespace

Chart timeline_chart(std::vector<TimelineBar> bars, std::string title, int width) {
  const Layout layout = plan(bars, width);
  Chart chart;
  chart.size = {layout.width, layout.height};
  chart.paper = paper;
  chart.paint = [layout, bars = std::move(bars), title = std::move(title)](Canvas& canvas) {
    canvas.text(margin, margin, fit_text(title, layout.width - 2 * margin, heading), ink, heading);
    for (int i = 0; i * layout.tick <= layout.seconds; ++i) {
      const double x = layout.x(i * layout.tick);
      canvas.fill(x, layout.top, 1, layout.bottom - layout.top, faint);
      canvas.text(x, layout.bottom + margin / 2, seconds_text(i * layout.tick), ink, words);
    }
    const int above = (bar_height - text_height(words)) / 2;
    for (const std::string& lane : layout.lanes) {
      canvas.text(margin, layout.y(lane) + above, lane, ink, words);
    }
    for (const TimelineBar& bar : bars) {
      const double from = layout.x(bar.begin), to = layout.x(bar.end);
      // Neighbours stay apart where there is room for a gap.
      const double length = to - from - (to - from > 3 ? 1 : 0);
      char times[64];
      std::snprintf(times, sizeof times, ": %.3f s to %.3f s", bar.begin, bar.end);
      canvas.fill(from, layout.y(bar.lane), length, bar_height, layout.colour(bar.lane),
                  bar.label + times);
    }
  };
  return chart;
}

void check_timeline_path(const std::string& path) { check_chart_path(path, "a timeline"); }

void write_timeline(const std::string& path, const std::vector<TimelineBar>& bars,
                    const std::string& title) {
  write_chart(path, timeline_chart(bars, title), "a timeline");
}

}  // namespace kinora
