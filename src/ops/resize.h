// Resizing RGB pictures the way the models' training did. The reference is PyTorch's
// interpolate(antialias=True) on uint8, which torchvision's resize and Hugging Face's fast image
// and video processors call: widths first and then heights, 16-bit integer weights, and each pass
// rounded and clamped to 8 bits. The integers here are the same, so results are bit-identical to it
// and from machine to machine, whatever the vector width or the number of threads.
// Used by video/ (through the row interface in ops/resize_rows.h) and by the image processors.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

enum class ResizeFilter : uint8_t {
  bicubic,   // Keys' cubic, a = -0.5, widened by the shrink factor
  area,      // mean of the covered source area, fractional borders included
  bilinear,  // triangle, widened by the shrink factor
  nearest,   // source pixel floor(i × in / out), as PyTorch's "nearest"
};

std::string_view resize_filter_name(ResizeFilter filter);
std::optional<ResizeFilter> parse_resize_filter(std::string_view name);

// source is u8 [h, w, 3], target u8 [h', w', 3]; rows may have any stride. Equal sizes copy.
void resize(const Context& context, ConstTensorView source, ResizeFilter filter, TensorView target);

}  // namespace kinora
