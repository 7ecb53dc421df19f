#include "model/chat/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"

namespace kinora {
namespace {

using jinja::Dict;
using jinja::Items;
using jinja::Value;

bool uses_published(const ChatTraits& traits, const PublishedTemplate& published) {
  return !published.text.empty() &&
         (!traits.sees() || published.text.find(traits.image) != std::string::npos);
}

std::string template_name(const ChatTraits& traits, const PublishedTemplate& published) {
  return uses_published(traits, published) ? published.path : "the family's chat template";
}

std::string_view template_text(const ChatTraits& traits, const PublishedTemplate& published) {
  return uses_published(traits, published) ? std::string_view(published.text) : traits.own_template;
}

std::string replaced(std::string_view text, std::string_view old, std::string_view fresh) {
  std::string result;
  for (size_t at = text.find(old); at != text.npos; at = text.find(old)) {
    result += text.substr(0, at);
    result += fresh;
    text.remove_prefix(at + old.size());
  }
  return result += text;
}

}  // namespace

// Placeholders in what people typed, hidden from the template behind texts that occur nowhere else,
// so that those it writes itself can be told apart.
class ChatTemplate::Typed {
 public:
  Typed(const ChatTraits& traits, const Conversation& conversation) {
    if (!traits.sees()) return;
    int number = 0;
    const auto occurs = [&](const std::string& mark) {
      return std::ranges::any_of(conversation.turns, [&](const Turn& turn) {
        return std::ranges::any_of(turn.parts, [&](const ContentPart& part) {
          return part.text.find(mark) != std::string::npos;
        });
      });
    };
    for (const std::string_view placeholder : {traits.image, traits.video}) {
      // U+FDD0 and U+FDD1 are no characters.
      std::string mark;
      do {
        mark = fmt::format("\uFDD0{}\uFDD1", number++);
      } while (occurs(mark));
      marks_.emplace_back(placeholder, mark);
    }
  }

  std::string hidden(std::string text) const {
    for (const auto& [placeholder, mark] : marks_) {
      if (text.find(placeholder) != text.npos) text = replaced(text, placeholder, mark);
    }
    return text;
  }
  std::string shown(std::string text) const {
    for (const auto& [placeholder, mark] : marks_) {
      if (text.find(mark) != text.npos) text = replaced(text, mark, placeholder);
    }
    return text;
  }

 private:
  std::vector<std::pair<std::string_view, std::string>> marks_;
};

ChatTemplate::ChatTemplate(const ChatTraits& traits, const PublishedTemplate& published)
    : traits_(traits),
      where_(template_name(traits, published)),
      tokens_(published.tokens),
      template_(template_text(traits, published), where_) {}

void ChatTemplate::check(const Conversation& conversation) const {
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
      if (part.modality != Modality::text && !(visual && traits_.sees())) {
        throw Error(ErrorKind::unsupported,
                    fmt::format("this model takes no {}; choose one that does",
                                modality_name(part.modality)));
      }
    }
  }
}

// Content is a string for text models and a list of parts for those that see.
Value ChatTemplate::message_of(const Turn& turn, const Typed& typed) const {
  Dict message;
  message.put("role", turn.role);
  if (!traits_.sees()) {
    std::string text;
    for (const ContentPart& part : turn.parts) text += part.text;
    message.put("content", std::move(text));
    return Value::dict(std::move(message));
  }
  Items parts;
  for (const ContentPart& part : turn.parts) {
    Dict content;
    content.put("type", std::string(modality_name(part.modality)));
    if (part.modality == Modality::text) content.put("text", typed.hidden(part.text));
    parts.push_back(Value::dict(std::move(content)));
  }
  message.put("content", Value::list(std::move(parts)));
  return Value::dict(std::move(message));
}

std::vector<ChatPiece> ChatTemplate::render(const Conversation& conversation,
                                            const ChatOptions& options) const {
  check(conversation);
  const Typed typed(traits_, conversation);
  Items messages;
  for (const Turn& turn : conversation.turns) messages.push_back(message_of(turn, typed));
  Dict variables;
  for (const auto& [name, token] : tokens_) variables.put(name, token);
  variables.put("messages", Value::list(std::move(messages)));
  variables.put("tools", {});
  variables.put("documents", {});
  variables.put("add_generation_prompt", conversation.add_generation_prompt);
  if (options.think) variables.put("enable_thinking", *options.think);
  if (options.date) variables.put("date_string", *options.date);
  return cut(template_.render(variables), conversation, typed);
}

// The template's n-th place for a picture is that of the conversation's n-th picture, whatever
// stands between them; the same for videos.
std::vector<ChatPiece> ChatTemplate::cut(std::string_view text, const Conversation& conversation,
                                         const Typed& typed) const {
  std::vector<ChatPiece> pieces;
  const auto add_text = [&](std::string_view part) {
    if (!part.empty()) pieces.push_back({typed.shown(std::string(part)), -1});
  };
  if (!traits_.sees()) {
    add_text(text);
    return pieces;
  }
  std::array<std::vector<int>, 2> wanted;  // pictures, videos
  int number = 0;
  for (const Turn& turn : conversation.turns) {
    for (const ContentPart& part : turn.parts) {
      if (part.modality != Modality::text) {
        wanted[part.modality == Modality::video ? 1 : 0].push_back(number++);
      }
    }
  }
  std::array<size_t, 2> found{};
  for (;;) {
    const std::array<size_t, 2> next{text.find(traits_.image), text.find(traits_.video)};
    const size_t which = next[1] < next[0] ? 1 : 0;
    if (next[which] == text.npos) break;
    add_text(text.substr(0, next[which]));
    const size_t place = found[which]++;
    if (place < wanted[which].size()) pieces.push_back({"", wanted[which][place]});
    text.remove_prefix(next[which] + (which == 1 ? traits_.video : traits_.image).size());
  }
  add_text(text);
  for (const size_t which : {0, 1}) {
    if (found[which] == wanted[which].size()) continue;
    throw Error(
        ErrorKind::unsupported,
        fmt::format("{}: the template writes {} place{} for {} {}{}; the conversation "
                    "cannot be put to this model",
                    where_, found[which], found[which] == 1 ? "" : "s", wanted[which].size(),
                    which == 1 ? "video" : "picture", wanted[which].size() == 1 ? "" : "s"));
  }
  return pieces;
}

}  // namespace kinora
