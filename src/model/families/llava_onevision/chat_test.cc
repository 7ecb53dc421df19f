#include "model/families/llava_onevision/chat.h"

#include <gtest/gtest.h>

#include "model/chat/chat_case.h"

namespace kinora {
namespace {

using testing::expect_published_text;

TEST(LlavaChatTest, GivesThePublishedText) {
  expect_published_text("llava_onevision.json", ChatTemplate(llava_onevision_chat, {}));
}

}  // namespace
}  // namespace kinora
