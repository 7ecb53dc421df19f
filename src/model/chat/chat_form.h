// A conversation as the text that a model was trained on: role markers, default system prompts, the
// places of pictures and videos. Every family has a form, equal to what its published template
// gives; no template language is interpreted. FamilyModel::render tokenizes the pieces.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/conversation.h"

namespace kinora {

struct ChatOptions {
  bool think = true;                // for models that think aloud: false makes them answer at once
  std::optional<std::string> date;  // for models that want today's; "15 Nov 2026"
};

// Text, or the place of a visual item (numbered in the order of the conversation).
struct ChatPiece {
  std::string text;
  int visual = -1;
  bool operator==(const ChatPiece&) const = default;
};

// Collects text and visual places; neighbouring texts become one piece.
class ChatWriter {
 public:
  ChatWriter& operator<<(std::string_view text);
  void visual(int index) { pieces_.push_back({"", index}); }
  std::vector<ChatPiece> take() { return std::move(pieces_); }

 private:
  std::vector<ChatPiece> pieces_;
};

class ChatForm {
 public:
  // Writes a conversation that has been checked: at least one turn, known roles, and only what the
  // family can read.
  using Write = std::function<void(const Conversation&, const ChatOptions&, ChatWriter&)>;
  // What stands for one picture and for one video in the published template's output.
  struct Placeholders {
    std::string_view image;
    std::string_view video;
  };

  // Of a family that reads text only.
  explicit ChatForm(Write write) : write_(std::move(write)) {}
  // Of a family that sees. The placeholders must outlive the form.
  ChatForm(Write write, const Placeholders& placeholders)
      : write_(std::move(write)), placeholders_(placeholders) {}

  // Throws a usage error for a conversation without turns and for a role other than system, user
  // and assistant, and unsupported for a picture or video that the family cannot read.
  std::vector<ChatPiece> render(const Conversation& conversation, const ChatOptions& options) const;

  // Empty for a family that reads text only.
  std::string_view placeholder(Modality modality) const;

 private:
  void check(const Conversation& conversation) const;

  Write write_;
  std::optional<Placeholders> placeholders_;
};

}  // namespace kinora
