// Cutting one picture into the tiles that LLaVA-OneVision's tower sees.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "model/families/llava_onevision/processor.h"

namespace kinora {
namespace {

// A window of a canvas u8 [height, width, 3] as a view.
TensorView window(Tensor& canvas, Size first, Size size) {
  uint8_t* data = canvas.data<uint8_t>() + (first.height * canvas.size(1) + first.width) * 3;
  const TensorView::Strides strides{canvas.size(1) * 3, 3, 1};
  return TensorView(reinterpret_cast<std::byte*>(data), DType::u8, {size.height, size.width, 3},
                    strides, canvas.device());
}

void copy(ConstTensorView source, TensorView target) {
  for (int64_t y = 0; y < source.size(0); ++y) {
    std::memcpy(target.row<uint8_t>(y), source.row<uint8_t>(y),
                static_cast<size_t>(source.size(1) * 3));
  }
}

// The picture in the middle of a square of its longer side, on the mean colour.
Tensor padded_square(ConstTensorView picture, const std::array<float, 3>& mean) {
  const int64_t height = picture.size(0), width = picture.size(1);
  const int64_t side = std::max(height, width);
  Tensor square(DType::u8, {side, side, 3});
  uint8_t* bytes = square.data<uint8_t>();
  for (int64_t i = 0; i < side * side; ++i) {
    for (size_t channel = 0; channel < 3; ++channel)
      *bytes++ = static_cast<uint8_t>(mean[channel] * 255);
  }
  copy(picture, window(square, {(side - width) / 2, (side - height) / 2}, {width, height}));
  return square;
}

}  // namespace

Tensor LlavaProcessor::tiles(const Context& context, const VisualPlan& plan,
                             ConstTensorView picture) const {
  if (picture.rank() != 3 || picture.dtype() != DType::u8 || picture.size(2) != 3 ||
      picture.size(0) < 1 || picture.size(1) < 1) {
    throw Error(ErrorKind::internal,
                fmt::format("{} is not one RGB picture", to_string(picture.shape())));
  }
  const int64_t side = config_.side;
  if (plan.source.images_in_prompt > 1) {
    Tensor tile(DType::u8, {1, side, side, 3});
    const Tensor square = padded_square(picture, normalizer_.mean());
    resize(context, square.view(), plan.filter, tile.view()[0]);
    return tile;
  }
  const PictureLayout layout = this->layout(plan.source.size);
  Tensor tiles(DType::u8, {1 + layout.tiles.width * layout.tiles.height, side, side, 3});
  resize(context, picture, plan.filter, tiles.view()[0]);

  Tensor canvas = Tensor::zeros(DType::u8, {layout.best.height, layout.best.width, 3});
  const Size first{(layout.best.width - layout.inside.width) / 2,
                   (layout.best.height - layout.inside.height) / 2};
  resize(context, picture, plan.filter, window(canvas, first, layout.inside));
  for (int64_t row = 0; row < layout.tiles.height; ++row) {
    for (int64_t column = 0; column < layout.tiles.width; ++column) {
      copy(window(canvas, {column * side, row * side}, {side, side}),
           tiles.view()[1 + row * layout.tiles.width + column]);
    }
  }
  return tiles;
}

}  // namespace kinora
