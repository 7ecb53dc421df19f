#include "engine/subtitles.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/error.h"

namespace kinora {
namespace {

constexpr int64_t max_bytes = int64_t{64} << 20;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && static_cast<unsigned char>(text.front()) <= ' ') text.remove_prefix(1);
  while (!text.empty() && static_cast<unsigned char>(text.back()) <= ' ') text.remove_suffix(1);
  return text;
}

// "01:02:03,500", "02:03.500"
std::optional<double> parse_clock(std::string_view text) {
  double seconds = 0;
  int parts = 0;
  while (true) {
    const size_t colon = text.find(':');
    std::string part(text.substr(0, colon));
    const bool last = colon == std::string_view::npos;
    if (last) std::replace(part.begin(), part.end(), ',', '.');
    double value = 0;
    const char* end = part.data() + part.size();
    const auto [after, error] = std::from_chars(part.data(), end, value, std::chars_format::fixed);
    if (error != std::errc() || after != end || std::signbit(value) || value > 1e6)
      return std::nullopt;
    seconds = seconds * 60 + value;
    if (++parts > 3) return std::nullopt;
    if (last) return parts >= 2 ? std::optional(seconds) : std::nullopt;
    text.remove_prefix(colon + 1);
  }
}

// Leaves out tags such as <i> and {\an8}, and joins what is left to one line.
void append_text(std::string& out, std::string_view line) {
  std::string plain;
  for (size_t i = 0; i < line.size(); ++i) {
    const char closing = line[i] == '<' ? '>' : line.substr(i).starts_with("{\\") ? '}' : '\0';
    const size_t end = closing != '\0' ? line.find(closing, i) : std::string_view::npos;
    if (end != std::string_view::npos) {
      i = end;
    } else {
      plain += line[i];
    }
  }
  const std::string_view text = trimmed(plain);
  if (text.empty()) return;
  if (!out.empty()) out += ' ';
  out += text;
}

}  // namespace

std::vector<Subtitle> parse_subtitles(std::string_view content, const std::string& name) {
  const auto refuse = [&](int64_t line, const std::string& why) {
    throw Error(ErrorKind::bad_input, name + " line " + std::to_string(line) + ": " + why +
                                          "; subtitles are SubRip (.srt) or WebVTT (.vtt) files");
  };
  if (content.starts_with("\xef\xbb\xbf")) content.remove_prefix(3);
  std::vector<Subtitle> found;
  bool within = false;  // the text of the last one
  int64_t number = 0;
  while (!content.empty()) {
    ++number;
    const size_t end = std::min(content.find('\n'), content.size());
    const std::string_view line = trimmed(content.substr(0, end));
    content.remove_prefix(std::min(end + 1, content.size()));
    if (line.empty()) {
      within = false;
      continue;
    }
    const size_t arrow = line.find("-->");
    if (arrow == std::string_view::npos) {
      // Outside of a subtitle stand its number, WebVTT's header, notes and styles.
      if (within) append_text(found.back().text, line);
      continue;
    }
    std::string_view until = trimmed(line.substr(arrow + 3));
    until = until.substr(0, until.find_first_of(" \t"));  // WebVTT's settings follow
    const auto begin_time = parse_clock(trimmed(line.substr(0, arrow)));
    const auto end_time = parse_clock(until);
    if (!begin_time || !end_time) refuse(number, "'" + std::string(line) + "' is not a time");
    if (*end_time < *begin_time) refuse(number, "a subtitle ends before it begins");
    found.push_back({*begin_time, *end_time, ""});
    within = true;
  }
  std::erase_if(found, [](const Subtitle& subtitle) { return subtitle.text.empty(); });
  if (found.empty()) refuse(number, "there is no subtitle in this file");
  std::stable_sort(found.begin(), found.end(),
                   [](const Subtitle& a, const Subtitle& b) { return a.begin < b.begin; });
  return found;
}

std::vector<Subtitle> read_subtitles(const FileSystem& files, const std::string& path) {
  return parse_subtitles(files.read(path, max_bytes), path);
}

}  // namespace kinora
