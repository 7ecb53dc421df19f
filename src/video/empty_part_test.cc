#include "video/empty_part.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"

namespace kinora {
namespace {

std::string refusal(const std::vector<double>& times) {
  try {
    refuse_empty_part("talk.mp4", times);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    return error.what();
  }
}

TEST(EmptyPart, SaysWhatThereIs) {
  EXPECT_EQ(refusal({0, 0.5, 59.9583}),
            "talk.mp4 has no frame in the part asked for: its frames begin between 0 and 59.958 s");
  EXPECT_EQ(refusal({}), "talk.mp4 has no frames");
}

}  // namespace
}  // namespace kinora
