#include "model/chat/chat_form.h"

#include <fmt/format.h>

#include "base/error.h"

namespace kinora {

ChatWriter& ChatWriter::operator<<(std::string_view text) {
  if (text.empty()) return *this;
  if (pieces_.empty() || pieces_.back().visual >= 0) pieces_.push_back({});
  pieces_.back().text += text;
  return *this;
}

void ChatForm::check(const Conversation& conversation) const {
  if (conversation.turns.empty()) {
    throw Error(ErrorKind::usage, "the conversation is empty; ask something");
  }
  for (const Turn& turn : conversation.turns) {
    if (turn.role != "system" && turn.role != "user" && turn.role != "assistant") {
      throw Error(ErrorKind::usage,
                  fmt::format("unknown role \"{}\"; use system, user or assistant", turn.role));
    }
    for (const ContentPart& part : turn.parts) {
      const bool visual = part.modality == Modality::image || part.modality == Modality::video;
      if (part.modality != Modality::text && !(visual && placeholders_)) {
        throw Error(ErrorKind::unsupported,
                    fmt::format("this model takes no {}; choose one that does",
                                modality_name(part.modality)));
      }
    }
  }
}

std::vector<ChatPiece> ChatForm::render(const Conversation& conversation,
                                        const ChatOptions& options) const {
  check(conversation);
  ChatWriter out;
  write_(conversation, options, out);
  return out.take();
}

std::string_view ChatForm::placeholder(Modality modality) const {
  if (!placeholders_) return "";
  return modality == Modality::video ? placeholders_->video : placeholders_->image;
}

}  // namespace kinora
