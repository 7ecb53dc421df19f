#include "ops/gather.h"

#include <gtest/gtest.h>

#include "ops/op_test_support.h"

namespace kinora {
namespace {

using namespace testing;

TEST(GatherRows, WidensTheRowsNamed) {
  KINORA_FRESH_RANDOM(random);
  for (const DType type : float_types) {
    for (const int64_t d : {1, 63, 896, 20000}) {
      const int64_t count = 71;
      auto table = TestTensor::random(random, type, {count, d}, 3);
      const auto values = table.values();
      std::vector<int32_t> rows{0, 70, 70};
      for (int i = 0; i < 130; ++i) rows.push_back(static_cast<int32_t>(random.below(count)));
      std::vector<double> expected;
      for (const int32_t row : rows) {
        expected.insert(expected.end(), values.begin() + row * d, values.begin() + (row + 1) * d);
      }
      for_each_context([&](const Context& context) {
        auto out = TestTensor::poisoned(DType::f32, {static_cast<int64_t>(rows.size()), d}, 1);
        gather_rows(context, table.on(context), rows, out.on(context));
        expect_close(out, expected, 0);
      });
    }
  }
}

TEST(ScatterRows, IsUndoneByGathering) {
  KINORA_FRESH_RANDOM(random);
  auto x = TestTensor::random(random, DType::f32, {3, 65}, 2);
  const std::vector<int32_t> rows{5, 0, 2};
  for_each_context([&](const Context& context) {
    auto out = TestTensor::of(std::vector<float>(6 * 65, 7.0f), {6, 65});
    scatter_rows(context, x.on(context), rows, out.on(context));
    auto back = TestTensor::poisoned(DType::f32, {3, 65});
    gather_rows(context, out.on(context), rows, back.on(context));
    expect_close(back, x.values(), 0);
    const auto all = out.values();
    for (const size_t row : {1, 3, 4}) {
      for (size_t i = 0; i < 65; ++i) ASSERT_EQ(all[row * 65 + i], 7.0);
    }
  });
}

TEST(AddRows, AddsToTheRowsNamedAndNoOthers) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t d : {1, 63, 896, 20000}) {
    const int64_t count = 72;
    // Rows of x lie in a wider matrix, as levels of DeepStack do.
    auto wide = TestTensor::random(random, DType::f32, {37, 2 * d});
    const auto before = TestTensor::random(random, DType::f32, {count, d}, 3);
    const auto values = wide.values(), old = before.copy().values();
    std::vector<int32_t> rows;
    for (int32_t row = 0; rows.size() < 37; row += row % 2 + 1) rows.push_back(row);
    std::vector<double> expected = old;
    for (size_t i = 0; i < rows.size(); ++i) {
      for (int64_t k = 0; k < d; ++k) {
        expected[static_cast<size_t>(rows[i] * d + k)] +=
            values[i * static_cast<size_t>(2 * d) + static_cast<size_t>(d + k)];
      }
    }
    for_each_context([&](const Context& context) {
      auto out = before.copy();
      add_rows(context, wide.on(context).columns(d, d), rows, out.on(context));
      expect_close(out, expected, 1e-7);
    });
  }
}

TEST(GatherRows, RefusesRowsThatAreNotThere) {
  const ThreadPool pool(1);
  const Context context(pool);
  Tensor table(DType::f32, {4, 3}), out(DType::f32, {1, 3});
  const std::vector<int32_t> beyond{4}, below{-1};
  expect_error("gather_rows: row 4 is outside a table of 4 rows",
               [&] { gather_rows(context, table, beyond, out); });
  expect_error("gather_rows: row -1 is outside", [&] { gather_rows(context, table, below, out); });
  expect_error("scatter_rows: row 4 is outside",
               [&] { scatter_rows(context, out, beyond, table); });
  expect_error("add_rows: row 4 is outside", [&] { add_rows(context, out, beyond, table); });
}

}  // namespace
}  // namespace kinora
