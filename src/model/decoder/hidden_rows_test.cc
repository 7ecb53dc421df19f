// Hidden rows of several results as one matrix.
#include "model/decoder/hidden_rows.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/buffer.h"
#include "base/error.h"

namespace kinora {
namespace {

constexpr int64_t width = 5;

class HiddenRowsTest : public ::testing::Test {
 protected:
  static Forwarded rows(int64_t count, float first) {
    Forwarded made;
    made.hidden = Tensor(DType::f32, {count, width});
    std::iota(made.hidden.data<float>(), made.hidden.data<float>() + count * width, first);
    return made;
  }
  static Forwarded failed() {
    Forwarded made;
    made.failure = std::make_exception_ptr(Error(ErrorKind::cancelled, "cancelled"));
    return made;
  }
  static void expect_counting(const HiddenRows& hidden, int64_t count) {
    ASSERT_EQ(hidden.count(), count);
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t c = 0; c < width; ++c) {
        EXPECT_EQ(hidden.view().row<float>(i)[c], static_cast<float>(i * width + c));
      }
    }
  }

  ThreadPool pool_{1};
  Context context_{pool_};
};

TEST_F(HiddenRowsTest, OfSeveralAreJoinedAndFailuresLeftOut) {
  const std::vector<Forwarded> results{rows(2, 0), failed(), rows(0, 0), rows(3, 2 * width)};
  expect_counting(HiddenRows(context_, results, width), 5);
}

TEST_F(HiddenRowsTest, ThatLieOneAfterAnotherStayWhereTheyAre) {
  const auto buffer = Buffer::allocate(Device::cpu(), 4 * width * sizeof(float));
  auto* values = reinterpret_cast<float*>(buffer->data());
  std::iota(values, values + 4 * width, 0.0f);
  std::vector<Forwarded> results(2);
  results[0].hidden = Tensor(buffer, 0, DType::f32, {1, width});
  results[1].hidden = Tensor(buffer, width * sizeof(float), DType::f32, {3, width});
  const HiddenRows hidden(context_, results, width);
  expect_counting(hidden, 4);
  EXPECT_EQ(hidden.view().raw(), buffer->data());
  std::swap(results[0], results[1]);
  EXPECT_NE(HiddenRows(context_, results, width).view().raw(), buffer->data());
}

TEST_F(HiddenRowsTest, OfNobodyAreNone) {
  const std::vector<Forwarded> results{failed(), failed()};
  EXPECT_EQ(HiddenRows(context_, results, width).count(), 0);
  EXPECT_EQ(HiddenRows(context_, {}, width).count(), 0);
}

}  // namespace
}  // namespace kinora
