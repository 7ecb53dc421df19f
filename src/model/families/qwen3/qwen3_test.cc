#include "model/families/qwen3/qwen3.h"

#include <gtest/gtest.h>

#include "model/chat/chat_case.h"

namespace kinora {
namespace {

using testing::expect_published_text;

TEST(Qwen3ChatTest, GivesThePublishedText) {
  expect_published_text("qwen3.json", ChatTemplate(qwen3_family().chat(), {}));
}

}  // namespace
}  // namespace kinora
