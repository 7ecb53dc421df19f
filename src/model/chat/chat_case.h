// Test support: conversations of tests/fixtures/chat and tests/fixtures/cases, with the text that
// the published templates give for them.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "model/chat/chat_template.h"

namespace kinora::testing {

inline Conversation conversation_of(const nlohmann::json& messages, bool prompt) {
  Conversation conversation;
  conversation.add_generation_prompt = prompt;
  for (const nlohmann::json& message : messages) {
    Turn turn{message["role"], {}};
    if (message["content"].is_string()) {
      turn.parts.push_back({Modality::text, message["content"]});
    } else {
      for (const nlohmann::json& part : message["content"]) {
        if (part["type"] == "text") {
          turn.parts.push_back({Modality::text, part["text"]});
        } else {
          turn.parts.push_back({part["type"] == "image" ? Modality::image : Modality::video, ""});
        }
      }
    }
    conversation.turns.push_back(turn);
  }
  return conversation;
}

// The text with placeholders where visual items stand, each of which must come once.
inline std::string rendered(const ChatTemplate& chat, const Conversation& conversation,
                            const ChatOptions& options = {}) {
  std::vector<Modality> visuals;
  for (const Turn& turn : conversation.turns) {
    for (const ContentPart& part : turn.parts) {
      if (part.modality != Modality::text) visuals.push_back(part.modality);
    }
  }
  std::vector<int> seen(visuals.size());
  std::string text;
  for (const ChatPiece& piece : chat.render(conversation, options)) {
    text += piece.text;
    if (piece.visual < 0) continue;
    EXPECT_TRUE(piece.text.empty());
    ++seen.at(static_cast<size_t>(piece.visual));
    text += chat.placeholder(visuals.at(static_cast<size_t>(piece.visual)));
  }
  EXPECT_EQ(seen, std::vector<int>(visuals.size(), 1));
  return text;
}

// Every case of a file in tests/fixtures/chat.
inline void expect_published_text(const std::string& file, const ChatTemplate& chat) {
  const auto cases =
      nlohmann::json::parse(real_files().read(std::string(KINORA_FIXTURES) + "/chat/" + file));
  ASSERT_GE(cases.size(), 10u);
  for (const nlohmann::json& one : cases) {
    SCOPED_TRACE(file + " " + one["name"].get<std::string>() + " " + one["options"].dump());
    ChatOptions options;
    if (one["options"].contains("enable_thinking")) {
      options.think = one["options"]["enable_thinking"];
    }
    if (one["options"].contains("date_string")) options.date = one["options"]["date_string"];
    const Conversation conversation =
        conversation_of(one["messages"], one["add_generation_prompt"]);
    EXPECT_EQ(rendered(chat, conversation, options), one["text"].get<std::string>());
  }
}

// "Hi" and nothing else.
inline Conversation greeting() {
  return {{{"user", {{Modality::text, "Hi"}}}}, /*add_generation_prompt=*/false};
}

}  // namespace kinora::testing
