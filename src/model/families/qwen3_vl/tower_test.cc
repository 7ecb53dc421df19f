// The vision tower, layer by layer, on the reference's own pixels.
#include "model/families/qwen3_vl/tower.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/reference_case.h"
#include "model/vision/tower_case.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using testing::CaseName;
using testing::ReferenceCase;
using testing::row_error;

constexpr double tolerance = 1e-4;

TEST(InterpolatedPositionsTest, AreBilinearWithCornersOnCorners) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  for (int trial = 0; trial < 40; ++trial) {
    const int64_t side = 1 + random.below(9), width = 1 + random.below(5);
    const int64_t merge = 1 + random.below(3);
    const int64_t rows = merge * (1 + random.below(7)), columns = merge * (1 + random.below(7));
    Tensor table(DType::f32, {side * side, width});
    for (int64_t i = 0; i < table.elements(); ++i) {
      table.data<float>()[i] = static_cast<float>(random.below(2000)) / 1000 - 1;
    }
    const Tensor actual = interpolated_positions(context, table, rows, columns, merge);
    ASSERT_EQ(actual.shape(), (Shape{rows * columns, width}));
    const auto at = [&](double y, double x, int64_t k) {  // a tent over every entry
      double sum = 0;
      for (int64_t r = 0; r < side; ++r) {
        for (int64_t c = 0; c < side; ++c) {
          const double share = std::max(0.0, 1 - std::abs(y - static_cast<double>(r))) *
                               std::max(0.0, 1 - std::abs(x - static_cast<double>(c)));
          sum += share * static_cast<double>(table.view().row<float>(r * side + c)[k]);
        }
      }
      return sum;
    };
    int64_t place = 0;
    for (int64_t top = 0; top < rows; top += merge) {
      for (int64_t left = 0; left < columns; left += merge) {
        for (int64_t inside = 0; inside < merge * merge; ++inside, ++place) {
          const auto y = static_cast<double>(top + inside / merge) * static_cast<double>(side - 1) /
                         static_cast<double>(std::max<int64_t>(1, rows - 1));
          const auto x = static_cast<double>(left + inside % merge) *
                         static_cast<double>(side - 1) /
                         static_cast<double>(std::max<int64_t>(1, columns - 1));
          for (int64_t k = 0; k < width; ++k) {
            EXPECT_NEAR(actual.view().row<float>(place)[k], at(y, x, k), 1e-6);
          }
        }
      }
    }
  }
}

class Qwen3TowerTest : public ::testing::TestWithParam<CaseName> {
 protected:
  Qwen3TowerTest()
      : reference_(GetParam()),
        directory_(testing::model_directory(GetParam().model)),
        config_(read_qwen3_vision(ConfigFiles::read(real_files(), directory_),
                                  testing::read_config(directory_).decoder)) {}

  // Bytes in patch order → what the tower reads.
  static Tensor normalized(const Tensor& patches) {
    Tensor result(DType::f32, patches.shape());
    for (int64_t i = 0; i < patches.elements(); ++i) {
      result.data<float>()[i] =
          static_cast<float>((patches.data<uint8_t>()[i] / 255.0 - 0.5) / 0.5);
    }
    return result;
  }

  Qwen3VisionTower tower() const {
    WeightsBinder binder(TensorFiles::open(real_files(), directory_), qwen3_vision_prefixes());
    return Qwen3VisionTower(config_, take_qwen3_vision(binder, config_));
  }

  void compare(const std::string& kind, const nlohmann::json& entries) {
    const Qwen3VisionTower tower = this->tower();
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
      ASSERT_EQ(expected.size(1), (1 + config_.levels()) * config_.output);
      const Tensor watched = tower.encode(context_, source, grid[0], grid[1], grid[2], watcher);
      const Tensor plain = tower.encode(context_, source, grid[0], grid[1], grid[2]);
      // Level by level, so that a large one does not hide a small one.
      for (int64_t part = 0; part <= config_.levels(); ++part) {
        const auto columns = [&](const Tensor& rows) {
          Tensor copy(DType::f32, {rows.size(0), config_.output});
          for (int64_t row = 0; row < rows.size(0); ++row) {
            std::copy_n(rows.view().row<float>(row) + part * config_.output, config_.output,
                        copy.view().row<float>(row));
          }
          return copy;
        };
        EXPECT_LE(row_error(columns(watched), columns(expected)), tolerance) << "part " << part;
        EXPECT_LE(row_error(columns(plain), columns(expected)), tolerance) << "part " << part;
      }
    }
  }

  ThreadPool pool_{2};
  Context context_{pool_};
  ReferenceCase reference_;
  std::string directory_;
  Qwen3VisionConfig config_;
  int64_t blocks_ = 0;
};

TEST_P(Qwen3TowerTest, PiecesGiveWhatAllAtOnceGives) {
  testing::expect_pieces_see_the_same(context_, tower(), tolerance);
}

TEST_P(Qwen3TowerTest, EveryLayerAgrees) {
  compare("image", reference_.json().at("images"));
  compare("video", reference_.json().at("videos"));
  if (GetParam().name == "image_odd") {
    EXPECT_EQ(blocks_, config_.layers);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Qwen3TowerTest,
                         ::testing::ValuesIn(testing::find_cases("qwen3_vl")), testing::case_label);

}  // namespace
}  // namespace kinora
