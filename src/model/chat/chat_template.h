// A conversation as the text that a model was trained on: role markers, default system prompts, the
// places of pictures and videos. The template is the one that the model's directory publishes, or
// the family's own where there is none. FamilyModel::render tokenizes the pieces.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/chat/published_template.h"
#include "model/conversation.h"
#include "text/jinja/template.h"

namespace kinora {

// What a family says of its conversations. The texts live as long as the program.
struct ChatTraits {
  std::string_view own_template;  // for directories that bring none
  // What the template writes for one picture and for one video; empty where the family reads text
  // only.
  std::string_view image = {};
  std::string_view video = {};

  bool sees() const { return !image.empty(); }
};

// Given to the template as its variables; absent ones are not defined there.
struct ChatOptions {
  std::optional<bool> think;        // enable_thinking: false makes a model answer at once
  std::optional<std::string> date;  // date_string; "15 Nov 2026"
};

// Text, or the place of a visual item (numbered in the order of the conversation).
struct ChatPiece {
  std::string text;
  int visual = -1;
  bool operator==(const ChatPiece&) const = default;
};

class ChatTemplate {
 public:
  // Throws when the template cannot be read; the error names its line. A template that has no place
  // for pictures is not that of a model that sees, but of its decoder: the family's own is taken.
  ChatTemplate(const ChatTraits& traits, const PublishedTemplate& published);

  // Throws a usage error for a conversation without turns, for a role other than system, user and
  // assistant, and for what the template refuses; unsupported for a picture or video that the
  // family cannot read or the template leaves out. Placeholders that a person typed are text.
  std::vector<ChatPiece> render(const Conversation& conversation, const ChatOptions& options) const;

  // Empty for a family that reads text only.
  std::string_view placeholder(Modality modality) const {
    return modality == Modality::video ? traits_.video : traits_.image;
  }

 private:
  class Typed;

  void check(const Conversation& conversation) const;
  jinja::Value message_of(const Turn& turn, const Typed& typed) const;
  std::vector<ChatPiece> cut(std::string_view text, const Conversation& conversation,
                             const Typed& typed) const;

  ChatTraits traits_;
  std::string where_;
  std::vector<std::pair<std::string, std::string>> tokens_;
  jinja::Template template_;
};

}  // namespace kinora
