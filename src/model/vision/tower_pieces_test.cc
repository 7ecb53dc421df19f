#include "model/vision/tower_pieces.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/random_data.h"

namespace kinora {
namespace {

constexpr int64_t frames_per_unit = 2, unit_tokens = 3, width = 5;

// Tokens that depend on every frame of their unit, a short last unit being filled with its last
// frame.
Tensor seen(ConstTensorView frames) {
  const int64_t units = (frames.size(0) + frames_per_unit - 1) / frames_per_unit;
  Tensor tokens(DType::f32, Shape{units * unit_tokens, width});
  for (int64_t row = 0; row < tokens.size(0); ++row) {
    const int64_t first = row / unit_tokens * frames_per_unit;
    for (int64_t c = 0; c < width; ++c) {
      float value = static_cast<float>(row % unit_tokens * width + c);
      for (int64_t i = 0; i < frames_per_unit; ++i) {
        const int64_t frame = std::min(first + i, frames.size(0) - 1);
        value = 3 * value + static_cast<float>(frames.row<uint8_t>(frame)[c]);
      }
      tokens.view().row<float>(row)[c] = value;
    }
  }
  return tokens;
}

TEST(TowerPieces, GiveWhatAllFramesAtOnceGive) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(1);
  const Context context(pool);
  for (const int64_t count : {1, 2, 3, 4, 7, 20, 21}) {
    Tensor frames(DType::u8, Shape{count, 2, 2, 3});
    for (int64_t i = 0; i < frames.elements(); ++i) {
      frames.data<uint8_t>()[i] = static_cast<uint8_t>(random.below(256));
    }
    const Tensor expected = seen(frames);
    for (const int64_t unit_patches : {int64_t{1}, patches_at_once / 4, patches_at_once / 3,
                                       patches_at_once, 9 * patches_at_once}) {
      SCOPED_TRACE(::testing::Message() << count << " frames of " << unit_patches << " patches");
      int64_t most = 0;
      const Tensor actual =
          encode_in_pieces(context, frames, frames_per_unit, unit_patches, [&](auto piece) {
            most = std::max(most, (piece.size(0) + frames_per_unit - 1) / frames_per_unit);
            return seen(piece);
          });
      EXPECT_LE(most, std::max<int64_t>(1, patches_at_once / unit_patches));
      ASSERT_EQ(actual.shape(), expected.shape());
      EXPECT_TRUE(std::equal(actual.data<float>(), actual.data<float>() + actual.elements(),
                             expected.data<float>()));
    }
  }
}

}  // namespace
}  // namespace kinora
