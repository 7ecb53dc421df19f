// Line patterns as plans made on the device: bands that the host knows, and the strongest columns
// and diagonals of a probe that the host never sees. The same sets as line_plan.h makes of the same
// index, with the tiles of a space (line_space.h). Private to attention/.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/cuda/device_plan.h"
#include "attention/cuda/lines/line_space.h"
#include "attention/plan/line_plan.h"

namespace kinora::cuda_attention {

// What one head reads.
struct LineHead {
  int32_t absent = 0;  // 1: nothing, in this space
  // Bands: LineIndex's; the last `bottom` queries read everything.
  int32_t sink = 0;
  int32_t local = 0;
  int32_t bottom = 0;
  // Instead of bands: lines that the last queries find strongest.
  int32_t probed = 0;  // 0 or 1
  StrongestLines strongest{};
  // Or, where it is probed, a grid that they show.
  int32_t has_grid = 0;  // 0 or 1
  GridLook grid{};
};

// Phases of a grid that the device has room for.
constexpr int32_t most_grid_phases = 16;
// The largest stride of a grid on the device.
constexpr int32_t most_grid_stride = 4096;

// Whether the device makes the plan of such a grid. Left to the CPU are windows too small to close
// the gaps that horizontal lines leave.
inline bool plans_grid(const GridLook& grid) {
  if (grid.phases > most_grid_phases || grid.stride > most_grid_stride) return false;
  if (grid.slash != 0) return true;
  return grid.local == 0 || grid.horizontal == 0 || grid.local > grid.phases;
}
// A window besides slashes: the lines run as a second plan, onto the result of the first. Tiles of
// the first are of neighbours, as windows want them, those of the second of queries a stride apart.
KINORA_HOST_DEVICE inline bool in_two_plans(const LineHead& head) {
  return head.has_grid != 0 && head.grid.slash != 0 && head.grid.local > 0;
}

// A grid as it was found: LineIndex's, by coordinates of rows.
struct FoundGrid {
  int32_t stride;  // 0: the head has no grid
  int32_t local;
  int32_t vertical_count;  // found whether or not the lines are wanted
  int32_t slash_count;
  int32_t vertical[most_grid_phases];
  int32_t slash[most_grid_phases];
};

// The strongest lines of every probed head.
struct DeviceLines {
  Tensor columns;        // i32 [heads, most columns], increasing, then −1
  Tensor column_counts;  // i32 [heads]
  Tensor slashes;        // i32 [heads, most diagonals], increasing
  Tensor slash_counts;   // i32 [heads]
  Tensor grids;          // FoundGrid [heads], as bytes; undefined where no head has one
};

// Finds them: the attention of the last queries (LineSpace::probes), summed along columns and
// diagonals, of which the largest are taken. `rows` are the space's (rows_of).
DeviceLines find_lines(const Context& context, const LineSpace& space, const QueryView& queries,
                       const RowSet& rows, float scale, std::span<const LineHead> heads);

// Plans for all heads that are not absent, one launch each, to be run in turn onto one another: one
// plan, or two where a head is in_two_plans. Heads with a grid want a space with adjacent queries;
// `lines` may be empty where no head is probed. `out` only tells which kernel will run them.
std::vector<DevicePlan> line_plans(const Context& context, const LineSpace& space,
                                   const QueryView& queries, const RowSet& rows,
                                   std::span<const LineHead> heads, const DeviceLines& lines,
                                   const ConstTensorView& out);

}  // namespace kinora::cuda_attention
