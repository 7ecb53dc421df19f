#include "model/families/qwen2/qwen2.h"

#include <gtest/gtest.h>

#include "model/chat/chat_case.h"

namespace kinora {
namespace {

using testing::expect_published_text;
using testing::greeting;
using testing::rendered;

TEST(Qwen2ChatTest, GivesThePublishedText) {
  expect_published_text("qwen2.json", qwen2_family().chat(""));
}

TEST(Qwen2ChatTest, TellsVariantsApart) {
  const auto text = [](std::string_view published) {
    return rendered(qwen2_family().chat(published), greeting());
  };
  EXPECT_EQ(text("… You are a helpful assistant. …"),
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n");
  EXPECT_EQ(text("{{ no default }}"), "<|im_start|>user\nHi<|im_end|>\n");
}

}  // namespace
}  // namespace kinora
