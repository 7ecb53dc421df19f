#include "model/chat/chat_text.h"

#include <algorithm>
#include <array>

namespace kinora {
namespace {

constexpr std::array<std::string_view, 29> white_space{
    "\t",     "\n",     "\v",     "\f",     "\r",     "\x1c",   "\x1d",   "\x1e",
    "\x1f",   " ",      "\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002",
    "\u2003", "\u2004", "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200a",
    "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};

}  // namespace

std::string plain_text(const Turn& turn) {
  std::string text;
  for (const ContentPart& part : turn.parts) text += part.text;
  return text;
}

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

std::string default_system(std::string_view usual, std::string_view published) {
  const auto has = [&](std::string_view part) { return published.find(part) != published.npos; };
  if (published.empty() || has(usual)) return std::string(usual);
  return has(plain_system) ? std::string(plain_system) : "";
}

}  // namespace kinora
