#include "eval/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "base/error.h"
#include "draw/text.h"

namespace kinora {
namespace {

constexpr int depths = 10;
constexpr int cell_width = 72, cell_height = 34, left = 92, margin = 14;
constexpr int line = 22;
constexpr TextStyle heading{14, true}, words{12, false}, small{10, false};
constexpr Colour paper{250, 250, 250}, ink{40, 40, 46}, empty{222, 222, 226};

struct Cell {
  double score = 0;
  int64_t count = 0;
};

using Column = std::array<Cell, depths>;

std::map<int64_t, Column> columns_of(const EvalOutcome& outcome, const std::string& policy) {
  std::map<int64_t, Column> columns;
  for (const EvalRecord& record : outcome.records) {
    if (record.policy != policy || record.depth < 0) continue;
    const int bin = std::clamp(static_cast<int>(record.depth * depths), 0, depths - 1);
    Cell& cell = columns[record.length][static_cast<size_t>(bin)];
    cell.score += record.score;
    ++cell.count;
  }
  return columns;
}

// From red (half right or worse) over yellow to green.
Colour share_colour(double share) {
  const double at = std::clamp((share - 0.5) * 2, 0.0, 1.0);
  const std::array<std::array<double, 3>, 3> stops{{{208, 72, 56}, {244, 208, 96}, {84, 168, 104}}};
  const size_t first = at < 0.5 ? 0 : 1;
  const double part = at * 2 - static_cast<double>(first);
  const auto mix = [&](size_t channel) {
    return static_cast<uint8_t>(
        std::lround(stops[first][channel] * (1 - part) + stops[first + 1][channel] * part));
  };
  return {mix(0), mix(1), mix(2)};
}

void centred(Canvas& canvas, double x, double y, double width, const std::string& text,
             const TextStyle& style) {
  canvas.text(x + (width - text_width(text, style)) / 2, y, text, ink, style);
}

void paint_map(Canvas& canvas, int top, const std::string& policy,
               const std::map<int64_t, Column>& columns) {
  canvas.text(margin, top, policy, ink, words);
  const int first_row = top + line;
  for (int bin = 0; bin < depths; ++bin) {
    canvas.text(margin, first_row + bin * cell_height + (cell_height - text_height(words)) / 2,
                fmt::format("{}–{} %", bin * 10, bin * 10 + 10), ink, words);
  }
  int x = left;
  for (const auto& [length, column] : columns) {
    for (int bin = 0; bin < depths; ++bin) {
      const Cell& cell = column[static_cast<size_t>(bin)];
      const double share = cell.count > 0 ? cell.score / static_cast<double>(cell.count) : 0;
      const int y = first_row + bin * cell_height;
      canvas.fill(x, y, cell_width - 2, cell_height - 2,
                  cell.count > 0 ? share_colour(share) : empty);
      if (cell.count == 0) continue;
      centred(canvas, x, y + 2, cell_width - 2, fmt::format("{:.0f} %", 100 * share), words);
      centred(canvas, x, y + 17, cell_width - 2, fmt::format("of {}", cell.count), small);
    }
    centred(canvas, x, first_row + depths * cell_height + 2, cell_width - 2, std::to_string(length),
            words);
    x += cell_width;
  }
  canvas.text(left, first_row + depths * cell_height + line, "length (frames; tokens of text)", ink,
              words);
}

}  // namespace

Chart needle_heat_map(const EvalOutcome& outcome, const std::vector<std::string>& policies,
                      const std::string& title) {
  std::vector<std::pair<std::string, std::map<int64_t, Column>>> maps;
  int widest = 0;
  for (const std::string& policy : policies) {
    auto columns = columns_of(outcome, policy);
    if (columns.empty()) continue;
    widest = std::max(widest, static_cast<int>(columns.size()));
    maps.emplace_back(policy, std::move(columns));
  }
  if (maps.empty()) {
    throw Error(
        ErrorKind::usage,
        "the heat map needs questions with a depth (see docs/eval.md), and none was answered");
  }
  const int map_height = depths * cell_height + 3 * line + margin;
  int width = left + widest * cell_width + margin;
  width = std::max(width, text_width(title, heading) + 2 * margin);
  for (const auto& [policy, columns] : maps) {
    width = std::max(width, text_width(policy, words) + 2 * margin);
  }
  Chart chart;
  chart.size = {width, 2 * margin + line + static_cast<int>(maps.size()) * map_height};
  chart.paper = paper;
  chart.paint = [title, maps = std::move(maps), map_height](Canvas& canvas) {
    canvas.text(margin, margin, title, ink, heading);
    int top = margin + line + 4;
    for (const auto& [policy, columns] : maps) {
      paint_map(canvas, top, policy, columns);
      top += map_height;
    }
  };
  return chart;
}

}  // namespace kinora
