#include <algorithm>

#include "server/http/http.h"

namespace kinora::server {
namespace {

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// `plus` reads + as a space, as queries write it.
std::optional<std::string> decode(std::string_view text, bool plus) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += plus && text[i] == '+' ? ' ' : text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = digit(text[i + 1]), low = digit(text[i + 2]);
    if (high < 0 || low < 0 || (high == 0 && low == 0)) return std::nullopt;
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

std::optional<std::string> HttpRequest::parameter(std::string_view name) const {
  for (const auto& [key, value] : query) {
    if (key == name) return value;
  }
  return std::nullopt;
}

bool parse_target(std::string_view target, HttpRequest& request) {
  const size_t mark = target.find('?');
  const auto path = decode(target.substr(0, mark), false);
  if (!path || !path->starts_with('/')) return false;
  request.path = *path;
  std::string_view rest = mark == std::string_view::npos ? "" : target.substr(mark + 1);
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('&'), rest.size());
    const std::string_view part = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (part.empty()) continue;
    const size_t equals = std::min(part.find('='), part.size());
    const auto name = decode(part.substr(0, equals), true);
    const auto value = decode(part.substr(std::min(equals + 1, part.size())), true);
    if (!name || !value) return false;
    request.query.emplace_back(*name, *value);
  }
  return true;
}

}  // namespace kinora::server
