#include "model/families/llama/llama.h"

#include <gtest/gtest.h>

#include "model/chat/chat_case.h"

namespace kinora {
namespace {

using testing::expect_published_text;
using testing::greeting;
using testing::rendered;

TEST(LlamaChatTest, GivesThePublishedText) {
  expect_published_text("llama3.json", llama_family().chat(""));
  expect_published_text("llama3_0.json", llama_family().chat("{{ bos_token }}"));
}

TEST(LlamaChatTest, TellsVariantsApart) {
  const auto text = [](std::string_view published) {
    return rendered(llama_family().chat(published), greeting());
  };
  EXPECT_EQ(text("{{ bos_token }}"),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>");
  // A template that asks the clock does not give the published date.
  const std::string dated = text("strftime_now Cutting Knowledge Date");
  EXPECT_EQ(dated.find("26 Jul 2024"), dated.npos);
  EXPECT_NE(dated.find("Today Date: "), dated.npos);
}

}  // namespace
}  // namespace kinora
