#include "model/families/qwen3_vl/chat.h"

#include <gtest/gtest.h>

#include "model/chat/chat_case.h"

namespace kinora {
namespace {

using testing::expect_published_text;

TEST(Qwen3VlChatTest, GivesThePublishedText) {
  expect_published_text("qwen3_vl.json", ChatTemplate(qwen3_vl_chat, {}));
}

ContentPart unit(double time, bool continues) {
  ContentPart part{Modality::video, ""};
  part.time = time;
  part.continues = continues;
  return part;
}

// The text with "V" for every visual slot.
std::string written(const Conversation& conversation, VideoPromptForm form) {
  std::vector<ChatPiece> pieces = ChatTemplate(qwen3_vl_chat, {}).render(conversation, {});
  write_unit_times(conversation, form, pieces);
  std::string text;
  int next = 0;
  for (const ChatPiece& piece : pieces) {
    if (piece.visual >= 0) {
      EXPECT_EQ(piece.visual, next++);
    }
    text += piece.visual >= 0 ? "V" : piece.text;
  }
  return text;
}

TEST(Qwen3VlChatTest, WritesTheTimesOfUnitsInBothForms) {
  const Conversation conversation{{{"user",
                                    {{Modality::image, ""},
                                     {Modality::text, "See:"},
                                     unit(0.25, false),
                                     unit(10.75, true),
                                     unit(1, false),
                                     {Modality::text, "?"}}}},
                                  false};
  const std::string start = "<|vision_start|>", end = "<|vision_end|>", slot = start + "V" + end;
  const std::string head = "<|im_start|>user\n" + slot + "See:", tail = "?<|im_end|>\n";
  // Halves go to the even digit, as in Python.
  EXPECT_EQ(
      written(conversation, VideoPromptForm::transformers_4_57),
      head + "<0.2 seconds>" + slot + "<10.8 seconds>" + slot + "<1.0 seconds>" + slot + tail);
  EXPECT_EQ(written(conversation, VideoPromptForm::transformers_5_10),
            head + start + "<0.2 seconds>" + slot + "<10.8 seconds>" + slot + end + start +
                "<1.0 seconds>" + slot + end + tail);
}

// A template of somebody else's may leave the markers out: the units have them all the same.
TEST(Qwen3VlChatTest, UnitsHaveMarkersWhateverTheTemplateWrites) {
  const Conversation conversation{{{"user", {unit(2, false), unit(3, true)}}}, false};
  for (const VideoPromptForm form :
       {VideoPromptForm::transformers_4_57, VideoPromptForm::transformers_5_10}) {
    std::vector<ChatPiece> pieces = {{"", 0}, {"", 1}, {"end", -1}};
    write_unit_times(conversation, form, pieces);
    const std::vector<ChatPiece> expected = {{"<2.0 seconds><|vision_start|>", -1},
                                             {"", 0},
                                             {"<|vision_end|><3.0 seconds><|vision_start|>", -1},
                                             {"", 1},
                                             {"<|vision_end|>end", -1}};
    EXPECT_EQ(pieces, expected);
  }
}

}  // namespace
}  // namespace kinora
