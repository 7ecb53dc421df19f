// Values as text: what Python's str(), repr() and json.dumps() give, and % and format() strings.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace kinora::jinja {

// All throw a Problem when the value nests too deeply (a namespace may hold itself) or the text
// grows past `limit` bytes.
inline constexpr size_t kMaxPrinted = size_t{64} << 20;

std::string to_text(const Value& value);
std::string to_repr(const Value& value);
std::string real_text(double value);

struct JsonStyle {
  bool ascii = false;
  std::optional<std::string> indent;  // what one level is indented by
  std::string between = ", ";
  std::string after_key = ": ";
  bool sort_keys = false;
};
std::string to_json(const Value& value, const JsonStyle& style);

// `pattern % values`.
std::string percent_format(std::string_view pattern, const Value& values);
// pattern.format(…).
std::string brace_format(std::string_view pattern, const Arguments& arguments);

}  // namespace kinora::jinja
