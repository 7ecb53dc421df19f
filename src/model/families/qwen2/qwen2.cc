#include "model/families/qwen2/qwen2.h"

#include <string>

#include "model/chat/chat_text.h"
#include "model/families/text_family.h"

namespace kinora {
namespace {

constexpr std::string_view usual_system =
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";

ChatForm qwen2_chat(std::string_view published) {
  return ChatForm([system = default_system(usual_system, published)](
                      const Conversation& conversation, const ChatOptions&, ChatWriter& out) {
    if (conversation.turns[0].role != "system" && !system.empty()) {
      out << "<|im_start|>system\n" << system << "<|im_end|>\n";
    }
    for (const Turn& turn : conversation.turns) {
      out << "<|im_start|>" << turn.role << "\n" << plain_text(turn) << "<|im_end|>\n";
    }
    if (conversation.add_generation_prompt) out << "<|im_start|>assistant\n";
  });
}

}  // namespace

const Family& qwen2_family() {
  static const TextFamily family("qwen2", qwen2_decoder, qwen2_chat);
  return family;
}

}  // namespace kinora
