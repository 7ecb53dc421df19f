#include "model/chat_template.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace kinora {
namespace {

constexpr std::string_view helpful = "You are a helpful assistant.";
constexpr std::string_view qwen =
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
constexpr std::string_view published_date = "26 Jul 2024";  // what Llama 3.1 says without a clock

// What Python's str.strip takes away: Unicode white space and the ASCII separators.
constexpr std::array<std::string_view, 29> white_space{
    "\t",     "\n",     "\v",     "\f",     "\r",     "\x1c",   "\x1d",   "\x1e",
    "\x1f",   " ",      "\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002",
    "\u2003", "\u2004", "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200a",
    "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};

std::string_view trim(std::string_view text) {
  const auto starts = [&](std::string_view space) { return text.starts_with(space); };
  const auto ends = [&](std::string_view space) { return text.ends_with(space); };
  for (auto it = std::ranges::find_if(white_space, starts); it != white_space.end();
       it = std::ranges::find_if(white_space, starts)) {
    text.remove_prefix(it->size());
  }
  for (auto it = std::ranges::find_if(white_space, ends); it != white_space.end();
       it = std::ranges::find_if(white_space, ends)) {
    text.remove_suffix(it->size());
  }
  return text;
}

std::string_view trim_lines(std::string_view text) {
  while (text.starts_with('\n')) text.remove_prefix(1);
  while (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

std::string_view trim_first_lines(std::string_view text) {
  while (text.starts_with('\n')) text.remove_prefix(1);
  return text;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  return fmt::format("{:%d %b %Y}", fmt::localtime(now));
}

// Collects text and visual places; neighbouring texts become one piece.
class Writer {
 public:
  Writer& operator<<(std::string_view text) {
    if (text.empty()) return *this;
    if (pieces_.empty() || pieces_.back().visual >= 0) pieces_.push_back({});
    pieces_.back().text += text;
    return *this;
  }
  void visual(int index) { pieces_.push_back({"", index}); }
  std::vector<ChatPiece> take() { return std::move(pieces_); }

 private:
  std::vector<ChatPiece> pieces_;
};

// A turn's text where the template takes a string.
std::string plain_text(const Turn& turn) {
  std::string text;
  for (const ContentPart& part : turn.parts) text += part.text;
  return text;
}

void write_qwen_vl(const Conversation& conversation, std::string_view system, Writer& out) {
  int visual = 0;
  if (conversation.turns[0].role != "system" && !system.empty())
    out << "<|im_start|>system\n" << system << "<|im_end|>\n";
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
}

// Within a turn pictures come first, then videos, then every text on a line of its own.
void write_llava(const Conversation& conversation, Writer& out) {
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

void write_qwen2(const Conversation& conversation, std::string_view system, Writer& out) {
  if (conversation.turns[0].role != "system" && !system.empty())
    out << "<|im_start|>system\n" << system << "<|im_end|>\n";
  for (const Turn& turn : conversation.turns)
    out << "<|im_start|>" << turn.role << "\n" << plain_text(turn) << "<|im_end|>\n";
  if (conversation.add_generation_prompt) out << "<|im_start|>assistant\n";
}

// Thoughts of answers before the last question are dropped; an answer after it keeps its thought.
void write_qwen3(const Conversation& conversation, bool think, Writer& out) {
  const std::vector<Turn>& turns = conversation.turns;
  size_t last_question = turns.size() - 1;
  for (size_t i = 0; i < turns.size(); ++i)
    if (turns[i].role == "user") last_question = i;
  for (size_t i = 0; i < turns.size(); ++i) {
    out << "<|im_start|>" << turns[i].role << "\n";
    const std::string text = plain_text(turns[i]);
    if (turns[i].role != "assistant") {
      out << text << "<|im_end|>\n";
      continue;
    }
    constexpr std::string_view open = "<think>", close = "</think>";
    std::string_view thought, said = text;
    if (const size_t end = said.rfind(close); end != said.npos) {
      thought = trim_lines(said.substr(0, said.find(close)));
      if (const size_t begin = thought.rfind(open); begin != thought.npos)
        thought = trim_first_lines(thought.substr(begin + open.size()));
      said = trim_first_lines(said.substr(end + close.size()));
    }
    if (i > last_question && (i + 1 == turns.size() || !thought.empty())) {
      out << "<think>\n" << trim_lines(thought) << "\n</think>\n\n" << trim_first_lines(said);
    } else {
      out << said;
    }
    out << "<|im_end|>\n";
  }
  if (!conversation.add_generation_prompt) return;
  out << "<|im_start|>assistant\n";
  if (!think) out << "<think>\n\n</think>\n\n";
}

void write_llama3(const Conversation& conversation, const std::optional<std::string>& date,
                  Writer& out) {
  const auto header = [&](std::string_view role) -> Writer& {
    return out << "<|start_header_id|>" << role << "<|end_header_id|>\n\n";
  };
  out << "<|begin_of_text|>";
  size_t first = 0;
  if (date) {
    header("system") << "Cutting Knowledge Date: December 2023\nToday Date: " << *date << "\n\n";
    if (conversation.turns[0].role == "system")
      out << trim(plain_text(conversation.turns[first++]));
    out << "<|eot_id|>";
  }
  for (size_t i = first; i < conversation.turns.size(); ++i) {
    const std::string text = plain_text(conversation.turns[i]);
    header(conversation.turns[i].role) << trim(text) << "<|eot_id|>";
  }
  if (conversation.add_generation_prompt) header("assistant");
}

bool sees(ChatFamily family) {
  return family == ChatFamily::qwen2_5_vl || family == ChatFamily::llava_onevision;
}

void check(const Conversation& conversation, ChatFamily family) {
  if (conversation.turns.empty()) {
    throw Error(ErrorKind::usage, "the conversation is empty; ask something");
  }
  for (const Turn& turn : conversation.turns) {
    if (turn.role != "system" && turn.role != "user" && turn.role != "assistant") {
      throw Error(ErrorKind::usage,
                  fmt::format("unknown role \"{}\"; use system, user or assistant", turn.role));
    }
    for (const ContentPart& part : turn.parts) {
      const bool known = part.modality == Modality::text || part.modality == Modality::image ||
                         part.modality == Modality::video;
      if (!known || (part.modality != Modality::text && !sees(family))) {
        throw Error(ErrorKind::unsupported,
                    fmt::format("this model takes no {}; choose one that does",
                                modality_name(part.modality)));
      }
    }
  }
}

}  // namespace

std::string read_chat_template(const FileSystem& files, const std::string& directory) {
  constexpr int64_t limit = 64 << 20;
  const std::string jinja = join_path(directory, "chat_template.jinja");
  if (files.is_file(jinja)) return files.read(jinja, limit);
  for (const char* name : {"chat_template.json", "tokenizer_config.json"}) {
    const std::string path = join_path(directory, name);
    if (!files.is_file(path)) continue;
    const nlohmann::json json = nlohmann::json::parse(files.read(path, limit), nullptr, false);
    if (!json.is_object()) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("{} is not a JSON object; download the model again", path));
    }
    const auto found = json.find("chat_template");
    if (found == json.end()) continue;
    if (found->is_string()) return found->get<std::string>();
    if (!found->is_array()) continue;
    for (const nlohmann::json& one : *found) {
      const bool named = one.is_object() && one.value("name", nlohmann::json()) == "default";
      if (named && one.contains("template") && one["template"].is_string())
        return one["template"].get<std::string>();
    }
  }
  return "";
}

ChatTemplate::ChatTemplate(ChatFamily family) : family_(family) {
  if (family == ChatFamily::qwen2_5_vl) system_ = helpful;
  if (family == ChatFamily::qwen2) system_ = qwen;
}

ChatTemplate ChatTemplate::choose(std::string_view model_type, std::string_view published) {
  const auto has = [&](std::string_view part) { return published.find(part) != published.npos; };
  if (model_type == "qwen2_5_vl" || model_type == "llava_onevision" || model_type == "qwen2" ||
      model_type == "qwen3") {
    ChatTemplate chosen(model_type == "qwen2_5_vl"        ? ChatFamily::qwen2_5_vl
                        : model_type == "llava_onevision" ? ChatFamily::llava_onevision
                        : model_type == "qwen2"           ? ChatFamily::qwen2
                                                          : ChatFamily::qwen3);
    // Qwen2 and its descendants differ in the prompt they write when none is given.
    if (!published.empty() && !has(chosen.system_)) chosen.system_ = has(helpful) ? helpful : "";
    return chosen;
  }
  if (model_type == "llama") {
    const bool dated = published.empty() || has("Cutting Knowledge Date");
    ChatTemplate chosen(dated ? ChatFamily::llama3_1 : ChatFamily::llama3);
    chosen.clock_date_ = has("strftime_now");
    return chosen;
  }
  throw Error(ErrorKind::unsupported,
              fmt::format("kinora has no chat template for models of type \"{}\"", model_type));
}

std::vector<ChatPiece> ChatTemplate::render(const Conversation& conversation,
                                            const ChatOptions& options) const {
  check(conversation, family_);
  Writer out;
  switch (family_) {
    case ChatFamily::qwen2_5_vl:
      write_qwen_vl(conversation, system_, out);
      break;
    case ChatFamily::llava_onevision:
      write_llava(conversation, out);
      break;
    case ChatFamily::qwen2:
      write_qwen2(conversation, system_, out);
      break;
    case ChatFamily::qwen3:
      write_qwen3(conversation, options.think, out);
      break;
    case ChatFamily::llama3:
      write_llama3(conversation, std::nullopt, out);
      break;
    case ChatFamily::llama3_1:
      write_llama3(conversation,
                   options.date.value_or(clock_date_ ? today() : std::string(published_date)), out);
      break;
  }
  return out.take();
}

std::string_view ChatTemplate::placeholder(Modality modality) const {
  const bool video = modality == Modality::video;
  if (family_ == ChatFamily::qwen2_5_vl) return video ? "<|video_pad|>" : "<|image_pad|>";
  if (family_ == ChatFamily::llava_onevision) return video ? "<video>" : "<image>";
  return "";
}

}  // namespace kinora
