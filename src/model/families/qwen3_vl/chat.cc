#include "model/families/qwen3_vl/chat.h"

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>

#include "base/error.h"

namespace kinora {
namespace {

constexpr std::string_view begin_marker = "<|vision_start|>";
constexpr std::string_view end_marker = "<|vision_end|>";

// Takes a marker away where it stands; HF's processor does without it where a template has none.
bool take_suffix(std::string& text, std::string_view marker) {
  if (!text.ends_with(marker)) return false;
  text.resize(text.size() - marker.size());
  return true;
}
bool take_prefix(std::string& text, std::string_view marker) {
  if (!text.starts_with(marker)) return false;
  text.erase(0, marker.size());
  return true;
}

}  // namespace

void write_unit_times(const Conversation& conversation, VideoPromptForm form,
                      std::vector<ChatPiece>& pieces) {
  std::vector<const ContentPart*> visuals;
  for (const Turn& turn : conversation.turns) {
    for (const ContentPart& part : turn.parts) {
      if (part.modality != Modality::text) visuals.push_back(&part);
    }
  }
  std::vector<ChatPiece> result;
  const auto last_text = [&]() -> std::string& {
    if (result.empty() || result.back().visual >= 0) result.push_back({});
    return result.back().text;
  };
  for (size_t i = 0; i < pieces.size(); ++i) {
    ChatPiece& piece = pieces[i];
    if (piece.visual < 0) {
      last_text() += piece.text;
      continue;
    }
    const auto number = static_cast<size_t>(piece.visual);
    const ContentPart& part = *visuals.at(number);
    if (!std::isfinite(part.time)) {
      result.push_back(std::move(piece));
      continue;
    }
    const bool goes_on = number + 1 < visuals.size() && visuals[number + 1]->continues;
    std::string& before = last_text();
    const bool marked = take_suffix(before, begin_marker);
    const bool doubled = marked && form == VideoPromptForm::transformers_5_10;
    if (doubled && !part.continues) before += begin_marker;
    before += fmt::format("<{:.1f} seconds>{}", part.time, begin_marker);
    result.push_back(std::move(piece));
    if (marked && i + 1 < pieces.size()) take_prefix(pieces[i + 1].text, end_marker);
    last_text() += end_marker;
    if (doubled && !goes_on) last_text() += end_marker;
  }
  pieces = std::move(result);
}

}  // namespace kinora
