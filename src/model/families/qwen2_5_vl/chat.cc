#include "model/families/qwen2_5_vl/chat.h"

#include <string>

#include "model/chat/chat_text.h"

namespace kinora {

ChatForm qwen2_5_vl_chat(std::string_view published) {
  const auto write = [system = default_system(plain_system, published)](
                         const Conversation& conversation, const ChatOptions&, ChatWriter& out) {
    int visual = 0;
    if (conversation.turns[0].role != "system" && !system.empty()) {
      out << "<|im_start|>system\n" << system << "<|im_end|>\n";
    }
    for (const Turn& turn : conversation.turns) {
      out << "<|im_start|>" << turn.role << "\n";
      for (const ContentPart& part : turn.parts) {
        if (part.modality == Modality::text) {
          out << part.text;
          continue;
        }
        out << "<|vision_start|>";
        out.visual(visual++);
        out << "<|vision_end|>";
      }
      out << "<|im_end|>\n";
    }
    if (conversation.add_generation_prompt) out << "<|im_start|>assistant\n";
  };
  return ChatForm(write, {"<|image_pad|>", "<|video_pad|>"});
}

}  // namespace kinora
