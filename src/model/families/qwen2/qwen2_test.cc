#include "model/families/qwen2/qwen2.h"

#include <gtest/gtest.h>

#include "model/chat/chat_case.h"

namespace kinora {
namespace {

using testing::expect_published_text;

TEST(Qwen2ChatTest, GivesThePublishedText) {
  expect_published_text("qwen2.json", ChatTemplate(qwen2_family().chat(), {}));
}

}  // namespace
}  // namespace kinora
