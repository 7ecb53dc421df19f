#include "model/families/llama/llama.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <optional>
#include <string>

#include "model/chat/chat_text.h"
#include "model/families/text_family.h"

namespace kinora {
namespace {

constexpr std::string_view published_date = "26 Jul 2024";  // what Llama 3.1 says without a clock

std::string today() {
  const std::time_t now = std::time(nullptr);
  return fmt::format("{:%d %b %Y}", fmt::localtime(now));
}

// With a date, a system turn that names it comes first.
void write(const Conversation& conversation, const std::optional<std::string>& date,
           ChatWriter& out) {
  const auto header = [&](std::string_view role) -> ChatWriter& {
    return out << "<|start_header_id|>" << role << "<|end_header_id|>\n\n";
  };
  out << "<|begin_of_text|>";
  size_t first = 0;
  if (date) {
    header("system") << "Cutting Knowledge Date: December 2023\nToday Date: " << *date << "\n\n";
    if (conversation.turns[0].role == "system") {
      out << trim(plain_text(conversation.turns[first++]));
    }
    out << "<|eot_id|>";
  }
  for (size_t i = first; i < conversation.turns.size(); ++i) {
    const std::string text = plain_text(conversation.turns[i]);
    header(conversation.turns[i].role) << trim(text) << "<|eot_id|>";
  }
  if (conversation.add_generation_prompt) header("assistant");
}

// Llama 3.0 has no system turn unless the conversation brings one. The template of 3.1 and later
// writes dates: today's where it asks the clock, else the published one.
ChatForm llama_chat(std::string_view published) {
  const auto has = [&](std::string_view part) { return published.find(part) != published.npos; };
  const bool dated = published.empty() || has("Cutting Knowledge Date");
  const bool clock = has("strftime_now");
  return ChatForm([dated, clock](const Conversation& conversation, const ChatOptions& options,
                                 ChatWriter& out) {
    if (!dated) return write(conversation, std::nullopt, out);
    write(conversation, options.date.value_or(clock ? today() : std::string(published_date)), out);
  });
}

}  // namespace

const Family& llama_family() {
  static const TextFamily family("llama", llama_decoder, llama_chat);
  return family;
}

}  // namespace kinora
