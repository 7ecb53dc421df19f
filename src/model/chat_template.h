// A conversation as the text that a model was trained on: role markers, default system prompts,
// the places of pictures and videos. One writer per family, equal to what the family's published
// template gives; no template language is interpreted. The families' render() tokenizes the pieces.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "model/conversation.h"

namespace kinora {

enum class ChatFamily {
  qwen2_5_vl,
  llava_onevision,
  qwen2,
  qwen3,
  llama3,    // 3.0: no system turn unless given
  llama3_1,  // 3.1 and later: a system turn with dates comes first
};

struct ChatOptions {
  bool think = true;                // Qwen3: false closes the thought before it begins
  std::optional<std::string> date;  // Llama 3.1 and later; "15 Nov 2026"
};

// Text, or the place of a visual item (numbered in the order of the conversation).
struct ChatPiece {
  std::string text;
  int visual = -1;
  bool operator==(const ChatPiece&) const = default;
};

// The template that a model directory publishes: chat_template.jinja, chat_template.json, or the
// chat_template of tokenizer_config.json (of several, the one named "default"); empty when none.
std::string read_chat_template(const FileSystem& files, const std::string& directory);

class ChatTemplate {
 public:
  // `model_type` is that of config.json, `published` the directory's template, empty when there is
  // none; it tells variants of a family apart (default system prompt, dates). Throws unsupported
  // for a model type that kinora does not know.
  static ChatTemplate choose(std::string_view model_type, std::string_view published);

  explicit ChatTemplate(ChatFamily family);

  ChatFamily family() const { return family_; }

  // Throws a usage error for a picture given to a family that reads text only, a role that is
  // not system, user or assistant, or no turns at all.
  std::vector<ChatPiece> render(const Conversation& conversation, const ChatOptions& options) const;

  // The text that stands for one picture or video in the published template's output.
  std::string_view placeholder(Modality modality) const;

 private:
  ChatFamily family_;
  std::string system_;       // when the conversation has no system turn first
  bool clock_date_ = false;  // the template asks for today's date
};

}  // namespace kinora
