#include "draw/charts.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "draw/colours.h"
#include "draw/text.h"

namespace kinora {
namespace {

constexpr Colour paper = {250, 250, 250};
constexpr Colour ink = {40, 40, 46};
constexpr int margin = 8;
constexpr int max_map_side = 4096;

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

// Means of factor × factor values; what does not fill a block at the edges is averaged alone.
std::vector<float> averaged(std::span<const float> values, int& rows, int& columns, int factor) {
  const int new_rows = (rows + factor - 1) / factor;
  const int new_columns = (columns + factor - 1) / factor;
  std::vector<float> means;
  means.reserve(static_cast<size_t>(new_rows) * static_cast<size_t>(new_columns));
  for (int r = 0; r < new_rows; ++r)
    for (int c = 0; c < new_columns; ++c) {
      double sum = 0;
      int count = 0;
      for (int y = r * factor; y < std::min(rows, (r + 1) * factor); ++y)
        for (int x = c * factor; x < std::min(columns, (c + 1) * factor); ++x, ++count)
          sum += values[static_cast<size_t>(y) * static_cast<size_t>(columns) +
                        static_cast<size_t>(x)];
      means.push_back(static_cast<float>(sum / count));
    }
  rows = new_rows;
  columns = new_columns;
  return means;
}

}  // namespace

Image heat_map(std::span<const float> values, int rows, int columns,
               const HeatMapOptions& options) {
  if (rows < 1 || columns < 1 ||
      values.size() != static_cast<size_t>(rows) * static_cast<size_t>(columns))
    throw Error(ErrorKind::internal, "heat_map: " + std::to_string(values.size()) + " values for " +
                                         std::to_string(rows) + " × " + std::to_string(columns));
  std::vector<float> means;
  const int longer = std::max(rows, columns);
  if (longer > max_map_side) {
    means = averaged(values, rows, columns, (longer + max_map_side - 1) / max_map_side);
    values = means;
  }
  double low = options.low, high = options.high;
  if (low == high) {
    low = INFINITY;
    high = -INFINITY;
    for (const float value : values)
      if (std::isfinite(value)) {
        low = std::min<double>(low, value);
        high = std::max<double>(high, value);
      }
    if (!(low <= high)) low = high = 0;
  }
  const int cell =
      options.cell > 0 ? options.cell : std::clamp(512 / std::max(rows, columns), 1, 64);
  const int line = text_height() + margin;
  const int left = margin;
  const int top =
      margin + (options.title.empty() ? 0 : line) + (options.row_name.empty() ? 0 : line);
  constexpr int legend_width = 90;
  const int map_width = columns * cell, map_height = rows * cell;
  const int width =
      std::max(left + map_width + margin + legend_width, 2 * margin + text_width(options.title));
  const int height =
      std::max(top + map_height, top + 64) + margin + (options.column_name.empty() ? 0 : line);
  Image image(width, height, paper);
  draw_text(image, margin, margin, options.title, ink);
  draw_text(image, margin, top - line, options.row_name, ink);
  draw_text(image, left, top + map_height + margin, options.column_name, ink);
  const double span = high > low ? high - low : 1;
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c) {
      const double value =
          values[static_cast<size_t>(r) * static_cast<size_t>(columns) + static_cast<size_t>(c)];
      image.fill({left + c * cell, top + r * cell, cell, cell}, heat_colour((value - low) / span));
    }
  const int legend_x = left + map_width + margin;
  const int legend_height = std::max(map_height, 64);
  for (int y = 0; y < legend_height; ++y)
    image.fill({legend_x, top + y, 12, 1},
               heat_colour(1 - static_cast<double>(y) / std::max(1, legend_height - 1)));
  draw_text(image, legend_x + 16, top, number_text(high), ink);
  draw_text(image, legend_x + 16, top + legend_height - glyph_height, number_text(low), ink);
  return image;
}

Image bar_chart(const std::vector<Bar>& bars, const std::string& title, int width) {
  constexpr int bar_height = 14, gap = 6;
  double largest = 0;
  int label_width = 0, value_width = 0;
  std::vector<std::string> texts;
  for (const Bar& bar : bars) {
    largest = std::max(largest, bar.value);
    texts.push_back(bar.text.empty() ? number_text(bar.value) : bar.text);
    label_width = std::max(label_width, text_width(bar.label));
    value_width = std::max(value_width, text_width(texts.back()));
  }
  const int top = margin + (title.empty() ? 0 : text_height() + margin);
  const int height = top + static_cast<int>(bars.size()) * (bar_height + gap) + margin;
  const int left = margin + label_width + margin;
  const int room = std::max(40, width - left - value_width - 2 * margin);
  Image image(left + room + value_width + 2 * margin, height, paper);
  draw_text(image, margin, margin, title, ink);
  for (size_t i = 0; i < bars.size(); ++i) {
    const int y = top + static_cast<int>(i) * (bar_height + gap);
    const double part = largest > 0 ? std::max(0.0, bars[i].value) / largest : 0;
    const int length = static_cast<int>(std::lround(part * room));
    const int text_y = y + (bar_height - glyph_height) / 2;
    draw_text(image, margin, text_y, bars[i].label, ink);
    image.fill({left, y, length, bar_height}, series_colour(static_cast<int>(i)));
    draw_text(image, left + length + margin, text_y, texts[i], ink);
  }
  return image;
}

}  // namespace kinora
