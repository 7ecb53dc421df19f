// The vision tower, layer by layer, on the reference's own pixels.
#include "model/families/qwen2_5_vl/tower.h"

#include <gtest/gtest.h>

#include "model/reference_case.h"
#include "model/vision/processor_files.h"
#include "model/vision/tower_case.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using testing::CaseName;
using testing::ReferenceCase;
using testing::row_error;

constexpr double tolerance = 1e-4;

// Windows as Hugging Face finds them: pad to whole windows, reshape, and drop the padding.
WindowOrder padded_window_order(int64_t rows, int64_t columns, int64_t side) {
  WindowOrder order;
  order.offsets.push_back(0);
  const int64_t down = (rows + side - rows % side) / side;
  const int64_t across = (columns + side - columns % side) / side;
  for (int64_t window = 0; window < down * across; ++window) {
    for (int64_t inside = 0; inside < side * side; ++inside) {
      const int64_t row = window / across * side + inside / side;
      const int64_t column = window % across * side + inside % side;
      if (row >= rows || column >= columns) continue;
      order.tokens.push_back(static_cast<int32_t>(row * columns + column));
    }
    const auto end = static_cast<int32_t>(order.tokens.size());
    if (end != order.offsets.back()) order.offsets.push_back(end);
  }
  return order;
}

TEST(WindowOrderTest, IsThatOfThePaddedGrid) {
  KINORA_FRESH_RANDOM(random);
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t rows = 1 + random.below(20), columns = 1 + random.below(20);
    const int64_t side = 1 + random.below(6);
    const WindowOrder order = window_order(rows, columns, side);
    const WindowOrder expected = padded_window_order(rows, columns, side);
    EXPECT_EQ(order.tokens, expected.tokens) << rows << "×" << columns << " by " << side;
    EXPECT_EQ(order.offsets, expected.offsets) << rows << "×" << columns << " by " << side;
  }
}

class QwenTowerTest : public ::testing::TestWithParam<CaseName> {
 protected:
  QwenTowerTest()
      : reference_(GetParam()),
        directory_(testing::model_directory(GetParam().model)),
        config_(read_qwen_vision(ConfigFiles::read(real_files(), directory_),
                                 testing::read_config(directory_).decoder.hidden)) {}

  // Bytes in patch order → what the tower reads.
  Tensor normalized(const Tensor& patches) const {
    const auto settings =
        nlohmann::json::parse(read_processor_files(real_files(), directory_).image);
    Tensor result(DType::f32, patches.shape());
    const int64_t width = patches.size(1);
    for (int64_t i = 0; i < patches.elements(); ++i) {
      const auto channel = static_cast<size_t>(i % width / (width / 3));
      const double value = patches.data<uint8_t>()[i] / 255.0;
      result.data<float>()[i] =
          static_cast<float>((value - settings.at("image_mean")[channel].get<double>()) /
                             settings.at("image_std")[channel].get<double>());
    }
    return result;
  }

  QwenVisionTower tower() const {
    WeightsBinder binder(TensorFiles::open(real_files(), directory_), qwen_vision_prefixes());
    return QwenVisionTower(config_, take_qwen_vision(binder, config_));
  }

  void compare(const std::string& kind, const nlohmann::json& entries) {
    const QwenVisionTower tower = this->tower();
    for (size_t i = 0; i < entries.size(); ++i) {
      const std::string name = kind + "." + std::to_string(i);
      const auto grid = entries[i].at("grid_thw").get<std::vector<int64_t>>();
      const Tensor patches = normalized(reference_.tensor(name + ".patches"));
      const auto watcher = [&](int layer, ConstTensorView hidden) {
        const std::string block = "vision.block." + std::to_string(layer);
        if (!reference_.has(block)) return;
        EXPECT_LE(row_error(hidden, reference_.tensor(block)), tolerance) << block;
        ++blocks_;
      };
      const PatchSource source = testing::patches_of(patches, grid[1] * grid[2]);
      const Tensor expected = reference_.tensor("vision." + name);
      const Tensor watched = tower.encode(context_, source, grid[0], grid[1], grid[2], watcher);
      EXPECT_LE(row_error(watched, expected), tolerance);
      const Tensor plain = tower.encode(context_, source, grid[0], grid[1], grid[2]);
      EXPECT_LE(row_error(plain, expected), tolerance);
    }
  }

  ThreadPool pool_{2};
  Context context_{pool_};
  ReferenceCase reference_;
  std::string directory_;
  QwenVisionConfig config_;
  int64_t blocks_ = 0;
};

TEST_P(QwenTowerTest, PiecesGiveWhatAllAtOnceGives) {
  testing::expect_pieces_see_the_same(context_, tower(), tolerance);
}

TEST_P(QwenTowerTest, EveryLayerAgrees) {
  compare("image", reference_.json().at("images"));
  compare("video", reference_.json().at("videos"));
  if (GetParam().name == "image_odd") {
    EXPECT_EQ(blocks_, config_.layers);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, QwenTowerTest,
                         ::testing::ValuesIn(testing::find_cases("qwen2_5_vl")),
                         testing::case_label);

}  // namespace
}  // namespace kinora
