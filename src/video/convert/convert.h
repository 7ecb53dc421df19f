// A decoded picture as model-size RGB, straight into the frame tensor. This is the only place where
// frames are resized. Every worker has a FrameConverter of its own and reuses it; the result
// depends on the picture alone, never on the worker or on the frames before it.
//
// The result is defined as: each pixel of the source to 8-bit RGB (rounded, clamped), that picture
// through ops/resize.h, then oriented.
//  - Matrix and range are the picture's own tags. An untagged matrix is BT.601 whatever the size,
//  as
//    swscale has it and with it PyAV, torchvision and decord, which feed the models' references; an
//    untagged range is limited, but full for the J formats and RGB.
//  - Subsampled chroma of videos is repeated, not interpolated: again swscale's way. That of still
//    pictures (`smooth_chroma`) is interpolated as libjpeg does it, and with it Pillow; 4:2:0 of
//    BT.601 in limited range, which is what WebP has, as libwebp does it, conversion included.
//  - Transfer curves and primaries are left alone and alpha is ignored.
//  - Pixels count as square, and the two fields of an interlaced frame as
//    one picture.
// Planar, semi-planar and packed YUV, gray, palette and RGB formats up to 16 bits are read
// directly; any other goes through swscale to RGB first.
#pragma once

#include <cstdint>
#include <memory>

#include "base/tensor.h"
#include "ops/resize.h"

struct AVFrame;

namespace kinora {

// How a stored picture is turned for viewing: transposed first, then mirrored.
struct Orientation {
  bool transposed = false;
  bool mirrored_x = false;  // left and right
  bool mirrored_y = false;  // top and bottom

  bool operator==(const Orientation&) const = default;

  // From a container's display matrix (nine numbers, FFmpeg's layout), to the nearest of the eight
  // orientations. Null means upright.
  static Orientation from_display_matrix(const int32_t* matrix);
  // Turned clockwise by quarters.
  static Orientation turned(int quarter_turns);
};

struct TargetFrame {
  int width = 0;  // of the upright picture
  int height = 0;
  ResizeFilter filter = ResizeFilter::bicubic;
  bool smooth_chroma = false;
};

class FrameConverter {
 public:
  explicit FrameConverter(const TargetFrame& target, const Orientation& orientation = {});
  ~FrameConverter();
  FrameConverter(FrameConverter&&) noexcept;
  FrameConverter& operator=(FrameConverter&&) noexcept;

  // `out` is u8 [height, width, 3]. Size and pixel format may change from frame to frame. Throws
  // bad_input for a frame without pixels and unsupported for a format nobody can convert. Not
  // thread safe.
  void convert(const AVFrame& frame, TensorView out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kinora
