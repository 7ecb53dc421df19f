#include "model/families/llava_onevision/chat.h"

namespace kinora {
namespace {

// Within a turn pictures come first, then videos, then every text on a line of its own.
void write(const Conversation& conversation, const ChatOptions&, ChatWriter& out) {
  int first = 0;
  for (const Turn& turn : conversation.turns) {
    out << "<|im_start|>" << turn.role << " ";
    for (const Modality wanted : {Modality::image, Modality::video}) {
      int visual = first;
      for (const ContentPart& part : turn.parts) {
        if (part.modality == wanted) out.visual(visual);
        if (part.modality != Modality::text) ++visual;
      }
    }
    for (const ContentPart& part : turn.parts) {
      if (part.modality == Modality::text) {
        out << "\n" << part.text;
      } else {
        ++first;
      }
    }
    out << "<|im_end|>";
  }
  if (conversation.add_generation_prompt) out << "<|im_start|>assistant\n";
}

}  // namespace

ChatForm llava_onevision_chat(std::string_view) { return ChatForm(write, {"<image>", "<video>"}); }

}  // namespace kinora
