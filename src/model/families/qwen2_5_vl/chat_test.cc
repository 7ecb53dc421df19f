#include "model/families/qwen2_5_vl/chat.h"

#include <gtest/gtest.h>

#include "model/chat/chat_case.h"

namespace kinora {
namespace {

using testing::expect_published_text;

TEST(QwenVlChatTest, GivesThePublishedText) {
  expect_published_text("qwen2_5_vl.json", ChatTemplate(qwen2_5_vl_chat, {}));
}

}  // namespace
}  // namespace kinora
