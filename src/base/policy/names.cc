#include "base/policy/names.h"

#include <algorithm>
#include <vector>

namespace kinora {
namespace {

constexpr size_t most_shown = 60;  // bytes of a text in a message
constexpr size_t most_edits = 2;

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

// Characters inserted, removed or replaced to make one text of the other (Levenshtein), one row of
// the table at a time.
size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string in_quotes(std::string_view text) {
  size_t end = std::min(text.size(), most_shown);
  // Not in the middle of a character.
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) {
    --end;
  }
  std::string shown = "'";
  for (const char c : text.substr(0, end)) {
    const auto byte = static_cast<unsigned char>(c);
    shown += byte < 0x20 || byte == 0x7F ? '?' : c;
  }
  return shown + (end < text.size() ? "…'" : "'");
}

std::string list_names(std::span<const std::string> names, std::string_view word) {
  std::string list;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) list += i + 1 < names.size() ? ", " : " " + std::string(word) + " ";
    list += names[i];
  }
  return list;
}

std::string_view nearest_name(std::string_view given, std::span<const std::string> names) {
  std::string_view best;
  size_t fewest = most_edits + 1;
  std::string_view begun;
  for (const std::string& name : names) {
    const size_t longer = std::max(given.size(), name.size());
    if (longer - std::min(given.size(), name.size()) > most_edits) {
      if (begun.empty() && !given.empty() && name.size() > given.size() &&
          lower(name).starts_with(lower(given))) {
        begun = name;
      }
      continue;
    }
    // A name of which no character is left was not meant.
    const size_t distance = edits(lower(given), lower(name));
    if (distance < longer && distance < fewest) {
      fewest = distance;
      best = name;
    }
  }
  return best.empty() ? begun : best;
}

std::string suggest_name(std::string_view given, std::span<const std::string> names) {
  const std::string_view meant = nearest_name(given, names);
  std::string text = meant.empty() ? "" : "did you mean " + std::string(meant) + "? ";
  text += meant.empty() ? "there " : "There ";
  return text + (names.size() == 1 ? "is " : "are ") + list_names(names);
}

}  // namespace kinora
