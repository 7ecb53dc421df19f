#include "model/families/qwen2_5_vl/chat.h"

#include <gtest/gtest.h>

#include "model/chat/chat_case.h"

namespace kinora {
namespace {

using testing::expect_published_text;
using testing::greeting;
using testing::rendered;

TEST(QwenVlChatTest, GivesThePublishedText) {
  expect_published_text("qwen2_5_vl.json", qwen2_5_vl_chat(""));
}

TEST(QwenVlChatTest, WritesTheTemplatesOwnSystemPrompt) {
  const std::string plain = "<|im_start|>user\nHi<|im_end|>\n";
  EXPECT_EQ(rendered(qwen2_5_vl_chat("{{ no default }}"), greeting()), plain);
  EXPECT_EQ(rendered(qwen2_5_vl_chat("… You are a helpful assistant. …"), greeting()),
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" + plain);
}

}  // namespace
}  // namespace kinora
