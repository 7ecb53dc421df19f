// Resizing a picture row by row, for callers that make the source rows on the fly (video/ converts
// YUV to RGB into them), so that no full-size RGB picture ever exists. The memory touched is a band
// of 16 source rows and the few target-width rows that the vertical filter spans.
//
// How: 16 source rows of one channel are transposed so that vector lanes run over rows, the
// horizontal filter makes target-width pixels of all 16 at once, and transposing back leaves rows
// in pairs, over which the vertical filter runs with lanes along the row. Both filters are one
// kernel: sums of pairs times pairs of weights.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ops/resize_axis.h"

namespace kinora {

// The weights of both axes. Made once for a pair of sizes and shared by threads.
struct ResizePlan {
  ResizeAxis horizontal;
  ResizeAxis vertical;

  ResizePlan(ResizeFilter filter, int source_width, int source_height, int target_width,
             int target_height);
};

// One thread's buffers.
class RowResizer {
 public:
  // Three channels of one row; each may be read up to `slack` bytes past the row's end.
  struct Rows {
    uint8_t* channel[3];
  };
  static constexpr int slack = 64;

  // Writes source row y. Called in rising order of y; bands of rows without a weight are left out.
  // May write up to `slack` bytes past the row's end.
  using Source = std::function<void(int y, const Rows& row)>;
  // Takes target row y; called in rising order.
  using Sink = std::function<void(int y, const Rows& row)>;

  explicit RowResizer(std::shared_ptr<const ResizePlan> plan);

  // Makes target rows [begin, end).
  void run(int begin, int end, const Source& source, const Sink& sink);

 private:
  static constexpr int band = 16;

  void fill_band(int first_row, const Source& source);

  std::shared_ptr<const ResizePlan> plan_;
  size_t source_stride_ = 0;
  size_t pair_stride_ = 0;  // bytes of a pair of target-width rows of one channel
  int ring_pairs_ = 0;
  std::vector<uint8_t> band_rows_;         // [3][band][source_stride]
  std::vector<uint8_t> band_transposed_;   // [source pair][band][2]
  std::vector<uint8_t> band_filtered_;     // [target x][band]
  std::vector<uint8_t> ring_;              // [3][ring pair][target x][2]
  std::vector<uint8_t> out_;               // [3][target x]
  std::vector<const uint8_t*> pair_rows_;  // scratch of the vertical filter
};

}  // namespace kinora
