// Filters of single values: text, numbers, JSON.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "text/jinja/arithmetic.h"
#include "text/jinja/characters.h"
#include "text/jinja/filters_table.h"
#include "text/jinja/printed.h"
#include "text/jinja/runtime.h"
#include "text/jinja/text_methods.h"

namespace kinora::jinja {
namespace {

Value filter_default(Runtime&, const Value& input, const Arguments& arguments) {
  arguments.expect("default", 2, {"default_value", "boolean"});
  const bool by_truth = arguments.take(1, "boolean").value_or(false).truth();
  if (input.is_undefined() || (by_truth && !input.truth())) {
    return arguments.take(0, "default_value").value_or("");
  }
  return input;
}

Value filter_trim(Runtime& runtime, const Value& input, const Arguments& arguments) {
  arguments.expect("trim", 1, {"chars"});
  const std::string text = to_text(input);
  runtime.spend(text.size());
  const std::optional<Value> set = arguments.take(0, "chars");
  if (!set || set->is_none()) return strip(text);
  return strip_left(strip_right(text, to_text(*set)), to_text(*set));
}

Value filter_upper(Runtime& runtime, const Value& input, const Arguments&) {
  const std::string text = to_text(input);
  runtime.spend(text.size());
  return upper(text);
}

Value filter_lower(Runtime& runtime, const Value& input, const Arguments&) {
  const std::string text = to_text(input);
  runtime.spend(text.size());
  return lower(text);
}

Value filter_capitalize(Runtime& runtime, const Value& input, const Arguments&) {
  const std::string text = to_text(input);
  runtime.spend(text.size());
  return capitalize(text);
}

// Words begin after white space, a hyphen or an opening bracket; the apostrophe stays inside.
Value filter_title(Runtime& runtime, const Value& input, const Arguments&) {
  const std::string text = to_text(input);
  runtime.spend(text.size());
  std::string out, word;
  const auto flush = [&] {
    if (word.empty()) return;
    const size_t first = character_size(word[0]);
    out += upper(word.substr(0, first)) + lower(word.substr(first));
    word.clear();
  };
  for_each_character(text, [&](std::string_view one) {
    if (is_space(one) || one.find_first_of("-({[<") != std::string_view::npos) {
      flush();
      out += one;
    } else {
      word += one;
    }
  });
  flush();
  return out;
}

Value filter_replace(Runtime& runtime, const Value& input, const Arguments& arguments) {
  arguments.expect("replace", 3, {"old", "new", "count"});
  const std::optional<Value> old = arguments.take(0, "old");
  const std::optional<Value> fresh = arguments.take(1, "new");
  if (!old || !fresh) throw Problem("replace needs an old and a new text");
  const std::optional<Value> count = arguments.take(2, "count");
  return replace_text(runtime, to_text(input), to_text(*old), to_text(*fresh),
                      count && count->is_integer() ? count->integer() : -1);
}

Value filter_indent(Runtime& runtime, const Value& input, const Arguments& arguments) {
  arguments.expect("indent", 3, {"width", "first", "blank"});
  const Value width = arguments.take(0, "width").value_or(4);
  const bool first = arguments.take(1, "first").value_or(false).truth();
  const bool blank = arguments.take(2, "blank").value_or(false).truth();
  std::string indention;
  if (width.is_string()) {
    indention = width.string();
  } else {
    if (!width.is_integer()) throw Problem("indent needs a number or a text");
    indention =
        std::string(static_cast<size_t>(std::clamp<int64_t>(width.integer(), 0, 10'000)), ' ');
  }
  const std::vector<std::string> lines = split_lines(to_text(input) + "\n", false);
  std::string out = first ? indention : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      out += '\n';
      if (blank || !lines[i].empty()) out += indention;
    }
    out += lines[i];
    runtime.spend(indention.size() + lines[i].size());
  }
  return out;
}

Value filter_string(Runtime& runtime, const Value& input, const Arguments&) {
  std::string text = to_text(input);
  runtime.spend(text.size());
  return text;
}

Value filter_escape(Runtime& runtime, const Value& input, const Arguments&) {
  const std::string text = to_text(input);
  runtime.spend(text.size());
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
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

Value filter_tojson(Runtime& runtime, const Value& input, const Arguments& arguments) {
  arguments.expect("tojson", 4, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = arguments.take(0, "ensure_ascii").value_or(false).truth();
  style.sort_keys = arguments.take(3, "sort_keys").value_or(false).truth();
  const Value indent = arguments.take(1, "indent").value_or(Value());
  if (indent.is_string()) {
    style.indent = indent.string();
  } else if (indent.is_integer()) {
    style.indent =
        std::string(static_cast<size_t>(std::clamp<int64_t>(indent.integer(), 0, 1000)), ' ');
  }
  if (style.indent) style.between = ",";
  const Value separators = arguments.take(2, "separators").value_or(Value());
  if (separators.is_indexable() && separators.sequence().items.size() == 2) {
    style.between = to_text(separators.sequence().items[0]);
    style.after_key = to_text(separators.sequence().items[1]);
  } else if (!separators.is_none()) {
    throw Problem("the separators of tojson are two texts");
  }
  std::string text = to_json(input, style);
  runtime.spend(text.size());
  return text;
}

Value filter_int(Runtime&, const Value& input, const Arguments& arguments) {
  arguments.expect("int", 2, {"default", "base"});
  const Value base = arguments.take(1, "base").value_or(10);
  if (input.is_undefined()) throw Problem(input.why_undefined());
  if (input.is_string()) {
    if (const std::optional<int64_t> whole =
            parse_integer(input.string(), static_cast<int>(base.integer()))) {
      return *whole;
    }
  }
  const std::optional<double> real = input.is_string()   ? parse_real(input.string())
                                     : input.is_number() ? std::optional(input.real())
                                                         : std::nullopt;
  if (input.is_integer()) return input.integer();
  if (real && std::abs(*real) < 9e18) return static_cast<int64_t>(*real);
  return arguments.take(0, "default").value_or(0);
}

Value filter_float(Runtime&, const Value& input, const Arguments& arguments) {
  arguments.expect("float", 1, {"default"});
  if (input.is_undefined()) throw Problem(input.why_undefined());
  if (input.is_number()) return input.real();
  const std::optional<double> real = input.is_string() ? parse_real(input.string()) : std::nullopt;
  return real ? Value(*real) : arguments.take(0, "default").value_or(0.0);
}

Value filter_abs(Runtime&, const Value& input, const Arguments&) {
  if (!input.is_number())
    throw Problem(fmt::format("bad operand type for abs(): '{}'", input.type_name()));
  return input.is_integer() ? Value(std::abs(input.integer())) : Value(std::abs(input.real()));
}

Value filter_round(Runtime&, const Value& input, const Arguments& arguments) {
  arguments.expect("round", 2, {"precision", "method"});
  const Value digits = arguments.take(0, "precision").value_or(0);
  const std::string method = to_text(arguments.take(1, "method").value_or("common"));
  if (!input.is_number() || !digits.is_integer()) throw Problem("round needs a number");
  const double scale = std::pow(10.0, static_cast<double>(digits.integer()));
  if (method == "ceil") return std::ceil(input.real() * scale) / scale;
  if (method == "floor") return std::floor(input.real() * scale) / scale;
  if (method != "common") throw Problem("method must be common, ceil or floor");
  if (input.is_integer() && digits.integer() >= 0) return input.integer();
  if (digits.integer() < 0 || digits.integer() > 17)
    return std::nearbyint(input.real() * scale) / scale;
  // Rounding what is printed is exact where multiplying is not.
  return std::strtod(fmt::format("{:.{}f}", input.real(), digits.integer()).c_str(), nullptr);
}

Value filter_format(Runtime& runtime, const Value& input, const Arguments& arguments) {
  if (!arguments.named.empty()) {
    throw Problem("format by name is not supported", Problem::Kind::unsupported);
  }
  std::string text = percent_format(to_text(input), Value::tuple(arguments.values));
  runtime.spend(text.size());
  return text;
}

Value filter_wordcount(Runtime& runtime, const Value& input, const Arguments&) {
  const std::string text = to_text(input);
  runtime.spend(text.size());
  int64_t words = 0;
  bool inside = false;
  for_each_character(text, [&](std::string_view one) {
    const char32_t c = code_point(one);
    const bool letter = is_letter(c) || is_digit(c) || c == '_';
    if (letter && !inside) ++words;
    inside = letter;
  });
  return words;
}

Value filter_length(Runtime&, const Value& input, const Arguments&) { return length_of(input); }
// There is no automatic escaping, so that text marked as safe is text.
Value filter_safe(Runtime&, const Value& input, const Arguments&) { return to_text(input); }

constexpr std::array value_filters{
    NamedFilter{"abs", filter_abs},         NamedFilter{"capitalize", filter_capitalize},
    NamedFilter{"count", filter_length},    NamedFilter{"d", filter_default},
    NamedFilter{"default", filter_default}, NamedFilter{"e", filter_escape},
    NamedFilter{"escape", filter_escape},   NamedFilter{"float", filter_float},
    NamedFilter{"format", filter_format},   NamedFilter{"indent", filter_indent},
    NamedFilter{"int", filter_int},         NamedFilter{"length", filter_length},
    NamedFilter{"lower", filter_lower},     NamedFilter{"replace", filter_replace},
    NamedFilter{"round", filter_round},     NamedFilter{"safe", filter_safe},
    NamedFilter{"string", filter_string},   NamedFilter{"title", filter_title},
    NamedFilter{"tojson", filter_tojson},   NamedFilter{"trim", filter_trim},
    NamedFilter{"upper", filter_upper},     NamedFilter{"wordcount", filter_wordcount},
};

}  // namespace

Filter find_filter(std::string_view name) {
  const auto in = [&](std::span<const NamedFilter> table) -> Filter {
    const auto found = std::ranges::find(table, name, &NamedFilter::first);
    return found == table.end() ? nullptr : found->second;
  };
  const Filter found = in(value_filters);
  return found != nullptr ? found : in(sequence_filters());
}

}  // namespace kinora::jinja
