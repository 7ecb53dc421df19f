// MMInference's grid: evenly spaced lines, stride and phase found online (docs/methods/grid.md).
#include <fmt/format.h>

#include <algorithm>

#include "attention/policies/pattern_policy.h"
#include "attention/search/grid_search.h"

namespace kinora {
namespace {

constexpr int32_t first_window = 512;  // of a grid that grows

struct Grid {
  int32_t sink = 128;
  int32_t local = 0;   // 0: one stride, or nothing where there are slashes
  int32_t phases = 1;  // of every kind of line
  int32_t stride = 0;  // 0: searched
  int32_t max_stride = most_stride;
  bool horizontal = true;
  bool vertical = true;
  bool slash = true;
};

LineIndex resolve_grid(const Grid& grid, const Region& region, const Probe& probe) {
  const GridLines lines{grid.horizontal, grid.vertical, grid.slash, grid.phases};
  const GridFit fit = grid.stride > 0 ? fit_grid(region, probe, grid.stride, lines)
                                      : search_grid(region, probe, least_stride,
                                                    largest_stride(region, grid.max_stride), lines);
  LineIndex index;
  index.sink = grid.sink;
  index.stride = fit.stride;
  if (grid.horizontal) index.horizontal = fit.vertical;
  if (grid.vertical) index.vertical = fit.vertical;
  if (grid.slash) index.slash = fit.slash;
  // With slashes, queries of one phase lie a stride apart and a window costs what lies between
  // them as well (comb_tile), so that it is not there unasked.
  index.local = grid.local > 0 || grid.slash ? grid.local : fit.stride;
  return index;
}

GridLook look_for_grid(const Grid& grid) {
  return {.sink = grid.sink,
          .local = grid.local,
          .phases = grid.phases,
          .stride = grid.stride,
          .most_stride = grid.max_stride,
          .horizontal = grid.horizontal,
          .vertical = grid.vertical,
          .slash = grid.slash};
}

std::string grid_text(const Grid& grid) {
  const std::string stride = grid.stride > 0 ? fmt::format("stride {}", grid.stride)
                                             : fmt::format("any stride to {}", grid.max_stride);
  return fmt::format("{} {}{}{}{}{}", stride, grid.horizontal ? "h" : "-",
                     grid.vertical ? "v" : "-", grid.slash ? "s" : "-",
                     grid.phases > 1 ? fmt::format(" × {}", grid.phases) : "",
                     grid.local > 0 ? fmt::format(" + {}", grid.local) : "");
}

std::string grid_problem(const Grid& grid) {
  if (!grid.horizontal && !grid.vertical && !grid.slash) return "none of its lines is on";
  if (grid.max_stride < least_stride || grid.max_stride > most_stride) {
    return fmt::format("a largest stride of {}; it must be in {} … {}", grid.max_stride,
                       least_stride, most_stride);
  }
  if (grid.phases < 1) return fmt::format("{} phases; a line has at least 1", grid.phases);
  return "";
}

// "hv": horizontal and vertical lines.
bool set_lines(Grid& grid, std::string_view letters) {
  if (letters.empty() || letters.find_first_not_of("hvs") != std::string_view::npos) return false;
  grid.horizontal = letters.find('h') != std::string_view::npos;
  grid.vertical = letters.find('v') != std::string_view::npos;
  grid.slash = letters.find('s') != std::string_view::npos;
  return true;
}

std::string lines_text(const Grid& grid) {
  return std::string(grid.horizontal ? "h" : "") + (grid.vertical ? "v" : "") +
         (grid.slash ? "s" : "");
}

// Every combination of lines that shows itself to the probe, following frames and searched.
std::vector<Grid> grid_candidates(int32_t frame_stride) {
  std::vector<Grid> grids;
  for (const int32_t stride : {frame_stride, 0}) {
    for (const char* lines : {"h", "v", "s", "hv", "vs", "hvs"}) {
      Grid grid;
      grid.stride = stride;
      set_lines(grid, lines);
      grids.push_back(grid);
    }
  }
  return grids;
}

// What a budget can be spent on: a window, more lines, or both.
std::vector<Grid> grid_shapes(const Grid& grid) {
  Grid window = grid;
  window.local = std::max(grid.local, first_window);
  Grid lines = grid;
  lines.phases = std::max(grid.phases, 2);
  Grid both = window;
  both.phases = lines.phases;
  return {window, lines, both};
}

}  // namespace

AttentionPolicy grid_policy() {
  PatternSizes<Grid> sizes({});
  sizes.count("sink", &Grid::sink, SizeChange::shrinks, "first tokens, read by all")
      .count("local", &Grid::local, SizeChange::grows,
             "nearest tokens; 0: one stride, or none where there are slashes");
  sizes.settings()
      .count("stride", &Grid::stride, {}, "tokens from line to line; 0: searched")
      .count("max-stride", &Grid::max_stride, {least_stride, most_stride},
             "the largest that is searched")
      .count("phases", &Grid::phases, {1, most_stride}, "lines of each kind to a stride")
      .add("lines", "some of h, v and s", "horizontal lines, vertical lines, slashes", set_lines,
           lines_text);
  sizes.store({.key = "stride", .least = 1}, &Grid::stride)
      .store({.key = "max_stride", .absent = most_stride}, &Grid::max_stride)
      .store({.key = "horizontal", .flag = true}, &Grid::horizontal)
      .store({.key = "vertical", .flag = true}, &Grid::vertical)
      .store({.key = "slash", .flag = true}, &Grid::slash)
      .store({.key = "phases", .change = SizeChange::counts, .absent = 1, .least = 1},
             &Grid::phases);
  return pattern_policy(LinePattern<Grid>{
      .name = "grid",
      .summary = "every Nth row, column and diagonal; N and phase are searched (MMInference)",
      .sizes = sizes,
      .resolve = resolve_grid,
      .text = grid_text,
      .needs_probe = true,
      .look = look_for_grid,
      .problem = grid_problem,
      .shapes = grid_shapes,
      .candidates = grid_candidates});
}

}  // namespace kinora
