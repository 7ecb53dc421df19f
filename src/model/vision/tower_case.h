// What the tests of vision towers share: patches given out in pieces, and towers that see the same
// whichever way they come.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "model/reference_case.h"
#include "model/vision/tower_pieces.h"
#include "support/random_data.h"

namespace kinora::testing {

// Gives out patches that are all there.
inline PatchSource patches_of(const Tensor& all, int64_t unit_patches) {
  return [&all, unit_patches](int64_t first, int64_t count) {
    Tensor some(DType::f32, Shape{count * unit_patches, all.size(1)});
    std::copy_n(all.view().row<float>(first * unit_patches), some.elements(), some.data<float>());
    return some;
  };
}

// Units so large that each goes alone, against all of them at once.
template <class Tower>
void expect_pieces_see_the_same(const Context& context, const Tower& tower, double tolerance) {
  KINORA_FRESH_RANDOM(random);
  const int64_t units = 3, rows = 32, columns = 34, unit_patches = rows * columns;
  ASSERT_GT(unit_patches, patches_at_once);
  Tensor patches(DType::f32, Shape{units * unit_patches, tower.patch_columns()});
  for (int64_t i = 0; i < patches.elements(); ++i) {
    patches.data<float>()[i] = static_cast<float>(random.uniform(-1, 1));
  }
  std::vector<int64_t> counts;
  const auto source = [&](int64_t first, int64_t count) {
    counts.push_back(count);
    return patches_of(patches, unit_patches)(first, count);
  };
  const Tensor whole =
      tower.encode(context, source, units, rows, columns, [](int, ConstTensorView) {});
  const Tensor pieces = tower.encode(context, source, units, rows, columns);
  EXPECT_EQ(counts, (std::vector<int64_t>{3, 1, 1, 1}));
  EXPECT_LE(row_error(pieces, whole), tolerance);
}

}  // namespace kinora::testing
