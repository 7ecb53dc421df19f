// Text inside SVG and HTML.
#pragma once

#include <string>
#include <string_view>

namespace kinora {

// Writes the three characters that have a meaning there as entities.
inline std::string escape_markup(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace kinora
