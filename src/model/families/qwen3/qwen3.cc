#include "model/families/qwen3/qwen3.h"

#include <string>
#include <vector>

#include "model/chat/chat_text.h"
#include "model/families/text_family.h"

namespace kinora {
namespace {

// Thoughts of answers before the last question are dropped; an answer after it keeps its thought.
void write_answer(const std::string& text, bool after_question, bool last, ChatWriter& out) {
  constexpr std::string_view open = "<think>", close = "</think>";
  std::string_view thought, said = text;
  if (const size_t end = said.rfind(close); end != said.npos) {
    thought = trim_lines(said.substr(0, said.find(close)));
    if (const size_t begin = thought.rfind(open); begin != thought.npos) {
      thought = trim_first_lines(thought.substr(begin + open.size()));
    }
    said = trim_first_lines(said.substr(end + close.size()));
  }
  if (after_question && (last || !thought.empty())) {
    out << "<think>\n" << trim_lines(thought) << "\n</think>\n\n" << trim_first_lines(said);
  } else {
    out << said;
  }
}

void write(const Conversation& conversation, const ChatOptions& options, ChatWriter& out) {
  const std::vector<Turn>& turns = conversation.turns;
  size_t last_question = turns.size() - 1;
  for (size_t i = 0; i < turns.size(); ++i) {
    if (turns[i].role == "user") last_question = i;
  }
  for (size_t i = 0; i < turns.size(); ++i) {
    out << "<|im_start|>" << turns[i].role << "\n";
    const std::string text = plain_text(turns[i]);
    if (turns[i].role == "assistant") {
      write_answer(text, i > last_question, i + 1 == turns.size(), out);
    } else {
      out << text;
    }
    out << "<|im_end|>\n";
  }
  if (!conversation.add_generation_prompt) return;
  out << "<|im_start|>assistant\n";
  // A thought that is closed before it begins.
  if (!options.think) out << "<think>\n\n</think>\n\n";
}

ChatForm qwen3_chat(std::string_view) { return ChatForm(write); }

}  // namespace

const Family& qwen3_family() {
  static const TextFamily family("qwen3", qwen3_decoder, qwen3_chat);
  return family;
}

}  // namespace kinora
