#include "cli/help/wrap.h"

#include <algorithm>

namespace kinora::cli {

size_t width_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string entry(size_t indent, std::string_view left, size_t column, std::string_view text) {
  std::string line = std::string(indent, ' ') + std::string(left);
  std::string lines;
  bool fresh = true;  // no word at the column yet
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!fresh && width_of(line) + 1 + width_of(word) > help_width) {
      lines += line + "\n";
      line.clear();
      fresh = true;
    }
    const size_t at = line.empty() ? column : std::max(column, width_of(line) + 1);
    line += fresh ? std::string(at - width_of(line), ' ') : " ";
    line += word;
    fresh = false;
  }
  return lines + line + "\n";
}

}  // namespace kinora::cli
