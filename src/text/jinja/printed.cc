#include "text/jinja/printed.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/characters.h"

namespace kinora::jinja {
namespace {

void check(size_t size, int depth) {
  if (depth > kMaxValueDepth) throw Problem("a value nests too deeply", Problem::Kind::limit);
  if (size > kMaxPrinted) throw Problem("the text grows too long", Problem::Kind::limit);
}

void append_string_repr(std::string_view text, std::string& out) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  out += quote;
  for_each_character(text, [&](std::string_view one) {
    const char32_t c = code_point(one);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += one;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out += one;
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  });
  out += quote;
}

void append_repr(const Value& value, std::string& out, int depth);

void append_items(const Items& items, std::string& out, int depth) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(items[i], out, depth + 1);
  }
}

void append_sequence(const Sequence& sequence, std::string& out, int depth) {
  switch (sequence.form) {
    case Sequence::Form::list:
      out += '[';
      append_items(sequence.items, out, depth);
      out += ']';
      return;
    case Sequence::Form::tuple:
      out += '(';
      append_items(sequence.items, out, depth);
      out += sequence.items.size() == 1 ? ",)" : ")";
      return;
    case Sequence::Form::view:
      out += sequence.shown_as;
      out += "([";
      append_items(sequence.items, out, depth);
      out += "])";
      return;
    case Sequence::Form::range:
    case Sequence::Form::iterator:
      throw Problem("a range or generator is printed; make it a list first",
                    Problem::Kind::unsupported);
  }
}

void append_repr(const Value& value, std::string& out, int depth) {
  check(out.size(), depth);
  if (value.is_undefined()) {
    out += "Undefined";
  } else if (value.is_none()) {
    out += "None";
  } else if (value.is_boolean()) {
    out += value.boolean() ? "True" : "False";
  } else if (value.is_integer()) {
    out += fmt::format("{}", value.integer());
  } else if (value.is_real()) {
    out += real_text(value.real());
  } else if (value.is_string()) {
    append_string_repr(value.string(), out);
  } else if (value.is_sequence()) {
    append_sequence(value.sequence(), out, depth);
  } else if (value.is_callable()) {
    throw Problem(fmt::format("a {} is printed", value.type_name()), Problem::Kind::unsupported);
  } else {
    if (value.is_namespace()) out += "<Namespace ";
    out += '{';
    bool first = true;
    for (const auto& [key, one] : value.dict().entries) {
      if (!first) out += ", ";
      first = false;
      append_repr(key, out, depth + 1);
      out += ": ";
      append_repr(one, out, depth + 1);
    }
    out += '}';
    if (value.is_namespace()) out += '>';
  }
}

void append_json_string(std::string_view text, bool ascii, std::string& out) {
  out += '"';
  for_each_character(text, [&](std::string_view one) {
    const char32_t c = code_point(one);
    switch (c) {
      case '"':
        out += "\\\"";
        return;
      case '\\':
        out += "\\\\";
        return;
      case '\n':
        out += "\\n";
        return;
      case '\r':
        out += "\\r";
        return;
      case '\t':
        out += "\\t";
        return;
      case '\b':
        out += "\\b";
        return;
      case '\f':
        out += "\\f";
        return;
      default:
        break;
    }
    if (c >= 0x20 && (!ascii || c < 0x7f)) {
      out += one;
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      const uint32_t rest = static_cast<uint32_t>(c) - 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff));
    }
  });
  out += '"';
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  void write(const Value& value, int depth) {
    check(out.size(), depth);
    if (value.is_none()) {
      out += "null";
    } else if (value.is_string()) {
      append_json_string(value.string(), style_.ascii, out);
    } else if (value.is_number()) {
      out += number(value);
    } else if (value.is_dict()) {
      write_dict(value.dict(), depth);
    } else if (value.is_indexable() && value.sequence().form != Sequence::Form::range) {
      const Items& items = value.sequence().items;
      write_group('[', ']', items.size(), depth, [&](size_t i) { write(items[i], depth + 1); });
    } else {
      throw Problem(fmt::format("Object of type {} is not JSON serializable", value.type_name()));
    }
  }

  std::string out;

 private:
  static std::string number(const Value& value) {
    if (value.is_boolean()) return value.boolean() ? "true" : "false";
    if (value.is_integer()) return fmt::format("{}", value.integer());
    const double real = value.real();
    if (std::isnan(real)) return "NaN";
    if (std::isinf(real)) return real > 0 ? "Infinity" : "-Infinity";
    return real_text(real);
  }

  template <typename Write>
  void write_group(char open, char close, size_t count, int depth, Write&& write_one) {
    out += open;
    for (size_t i = 0; i < count; ++i) {
      if (i > 0) out += style_.between;
      new_line(depth + 1);
      write_one(i);
    }
    if (count > 0) new_line(depth);
    out += close;
  }

  void new_line(int depth) {
    if (!style_.indent) return;
    out += '\n';
    for (int i = 0; i < depth; ++i) out += *style_.indent;
  }

  void write_dict(const Dict& dict, int depth) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::ranges::stable_sort(
          entries, [](const auto* a, const auto* b) { return less(a->first, b->first); });
    }
    write_group('{', '}', entries.size(), depth, [&](size_t i) {
      const Value& key = entries[i]->first;
      if (key.is_string()) {
        append_json_string(key.string(), style_.ascii, out);
      } else if (key.is_number() || key.is_none()) {
        append_json_string(key.is_none() ? "null" : number(key), style_.ascii, out);
      } else {
        throw Problem(
            fmt::format("keys must be str, int, float, bool or None, not {}", key.type_name()));
      }
      out += style_.after_key;
      write(entries[i]->second, depth + 1);
    });
  }

  const JsonStyle& style_;
};

std::string padded(std::string text, size_t width, char align, char fill) {
  const auto size = static_cast<size_t>(count_characters(text));
  if (size >= width) return text;
  const size_t missing = width - size;
  const size_t before = align == '>' ? missing : align == '^' ? missing / 2 : 0;
  return std::string(before, fill) + std::move(text) + std::string(missing - before, fill);
}

}  // namespace

// The shortest digits that give the number back, written as Python does.
std::string real_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<size_t>(end.ptr - buffer));
  const size_t e = text.find('e');
  const std::string sign = text[0] == '-' ? "-" : "";
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  int exponent = 0;
  const char* from = text.data() + e + 1;
  if (*from == '+') ++from;
  std::from_chars(from, text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    std::string result = sign + digits[0];
    if (digits.size() > 1) result += "." + digits.substr(1);
    return result + fmt::format("e{}{:02d}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) {
    return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  }
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string to_text(const Value& value) {
  if (value.is_string()) return value.string();
  if (value.is_undefined()) return "";
  return to_repr(value);
}

std::string to_repr(const Value& value) {
  std::string out;
  append_repr(value, out, 0);
  return out;
}

std::string to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(value, 0);
  return std::move(writer.out);
}

std::string percent_format(std::string_view pattern, const Value& values) {
  const bool many = values.is_sequence() && values.sequence().form == Sequence::Form::tuple;
  size_t used = 0;
  const auto next = [&]() -> const Value& {
    if (many ? used >= values.sequence().items.size() : used > 0) {
      throw Problem("not enough arguments for format string");
    }
    return many ? values.sequence().items[used++] : (++used, values);
  };
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    check(out.size(), 0);
    if (pattern[i] != '%') {
      out += pattern[i];
      continue;
    }
    if (++i == pattern.size()) throw Problem("incomplete format");
    bool left = false, zero = false;
    for (; i < pattern.size() && (pattern[i] == '-' || pattern[i] == '0'); ++i) {
      (pattern[i] == '-' ? left : zero) = true;
    }
    const auto number = [&]() -> size_t {
      size_t result = 0;
      for (; i < pattern.size() && pattern[i] >= '0' && pattern[i] <= '9'; ++i) {
        result = std::min<size_t>(result * 10 + static_cast<size_t>(pattern[i] - '0'), 100'000);
      }
      return result;
    };
    const size_t width = number();
    std::optional<size_t> precision;
    if (i < pattern.size() && pattern[i] == '.') {
      ++i;
      precision = number();
    }
    if (i == pattern.size()) throw Problem("incomplete format");
    std::string text;
    switch (pattern[i]) {
      case '%':
        out += '%';
        continue;
      case 's':
        text = to_text(next());
        break;
      case 'r':
        text = to_repr(next());
        break;
      case 'd':
      case 'i': {
        const Value& value = next();
        if (!value.is_number()) {
          throw Problem(
              fmt::format("%d format: a real number is required, not {}", value.type_name()));
        }
        text = fmt::format(
            "{}", value.is_integer() ? value.integer() : static_cast<int64_t>(value.real()));
        break;
      }
      case 'f': {
        const Value& value = next();
        if (!value.is_number()) throw Problem("must be real number");
        text = fmt::format("{:.{}f}", value.real(), precision.value_or(6));
        break;
      }
      default:
        throw Problem(fmt::format("the format %{} is not supported", pattern[i]),
                      Problem::Kind::unsupported);
    }
    if (pattern[i] == 's' && precision) {
      size_t bytes = 0;
      for (size_t k = 0; k < *precision && bytes < text.size(); ++k) {
        bytes += character_size(text[bytes]);
      }
      text.resize(std::min(bytes, text.size()));
    }
    const bool minus = zero && !left && text.starts_with('-') && pattern[i] != 's';
    if (minus) {
      out += '-' + padded(text.substr(1), width > 0 ? width - 1 : 0, '>', '0');
    } else {
      out += padded(std::move(text), width, left ? '<' : '>',
                    zero && !left && pattern[i] != 's' ? '0' : ' ');
    }
  }
  const bool all_used =
      many ? used == values.sequence().items.size() : used == 1 || values.is_dict();
  if (!all_used) throw Problem("not all arguments converted during string formatting");
  return out;
}

std::string brace_format(std::string_view pattern, const Arguments& arguments) {
  std::string out;
  size_t automatic = 0;
  for (size_t i = 0; i < pattern.size(); ++i) {
    check(out.size(), 0);
    const char c = pattern[i];
    if (c != '{' && c != '}') {
      out += c;
      continue;
    }
    if (i + 1 < pattern.size() && pattern[i + 1] == c) {
      out += c;
      ++i;
      continue;
    }
    if (c == '}') throw Problem("Single '}' encountered in format string");
    const size_t end = pattern.find('}', i);
    if (end == std::string_view::npos) throw Problem("expected '}' before end of string");
    const std::string_view field = pattern.substr(i + 1, end - i - 1);
    if (field.find_first_of(":!.[{") != std::string_view::npos) {
      throw Problem(fmt::format("the format field {{{}}} is not supported", field),
                    Problem::Kind::unsupported);
    }
    size_t place = arguments.values.size();
    if (field.empty()) {
      place = automatic++;
    } else if (field[0] >= '0' && field[0] <= '9') {
      std::from_chars(field.data(), field.data() + field.size(), place);
    }
    const std::optional<Value> value = arguments.take(place, field);
    if (!value)
      throw Problem(fmt::format("the format string asks for {{{}}}, which is missing", field));
    out += to_text(*value);
    i = end;
  }
  return out;
}

}  // namespace kinora::jinja
