// Line patterns as plans made on the device: bands that the host knows, and the strongest columns
// and diagonals of a probe that the host never sees. The same sets as line_plan.h makes of the same
// index, with tiles of 128 queries. Private to attention/.
#pragma once

#include <cstdint>
#include <span>

#include "attention/cuda/device_plan.h"
#include "attention/plan/line_plan.h"

namespace kinora::cuda_attention {

// What one head reads.
struct LineHead {
  // Bands: LineIndex's; the last `bottom` queries read everything.
  int32_t sink = 0;
  int32_t local = 0;
  int32_t bottom = 0;
  // Instead of bands: lines that the last queries find strongest.
  int32_t probed = 0;  // 0 or 1
  StrongestLines strongest{};
};

// The strongest lines of every probed head.
struct DeviceLines {
  Tensor columns;        // i32 [heads, most columns], increasing, then −1
  Tensor column_counts;  // i32 [heads]
  Tensor slashes;        // i32 [heads, most diagonals], increasing
  Tensor slash_counts;   // i32 [heads]
};

// Finds them: the attention of the last 64 queries, summed along columns and diagonals, of which
// the largest are taken. Queries and rows are unbroken (device_plan.h).
DeviceLines find_lines(const Context& context, const QueryView& queries, const RowSet& rows,
                       float scale, std::span<const LineHead> heads);

// A plan for all heads, in one launch. Queries and rows are unbroken; `lines` may be empty where no
// head is probed. `out` only tells which kernel will run it.
DevicePlan line_plan(const Context& context, const QueryView& queries, const RowSet& rows,
                     std::span<const LineHead> heads, const DeviceLines& lines,
                     const ConstTensorView& out);

}  // namespace kinora::cuda_attention
