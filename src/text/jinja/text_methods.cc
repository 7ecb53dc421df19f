#include "text/jinja/text_methods.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "text/jinja/characters.h"
#include "text/jinja/printed.h"

namespace kinora::jinja {
namespace {

std::string text_argument(const std::optional<Value>& value, std::string_view method) {
  if (!value) throw Problem(fmt::format("{}() lacks an argument", method));
  if (value->is_undefined()) throw Problem(value->why_undefined());
  if (!value->is_string()) {
    throw Problem(fmt::format("{}() argument must be str, not {}", method, value->type_name()));
  }
  return value->string();
}

int64_t count_argument(const std::optional<Value>& value) {
  if (!value) return -1;
  if (!value->is_integer()) throw Problem("a count must be a whole number");
  return value->integer();
}

enum class Side { left, right, both };

template <Side side>
Value strip_method(Runtime& runtime, const std::string& self, const Arguments& arguments) {
  arguments.expect("strip", 1);
  runtime.spend(self.size());
  std::string_view text = self;
  const std::optional<Value> set = arguments.take(0, "");
  if (!set || set->is_none()) {
    if (side != Side::right) text = strip_left(text);
    if (side != Side::left) text = strip_right(text);
    return text;
  }
  const std::string characters = text_argument(set, "strip");
  if (side != Side::right) text = strip_left(text, characters);
  if (side != Side::left) text = strip_right(text, characters);
  return text;
}

// At white space; runs of it count once.
Items split_at_spaces(std::string_view text, int64_t most) {
  Items parts;
  for (text = strip_left(text); !text.empty(); text = strip_left(text)) {
    if (most >= 0 && static_cast<int64_t>(parts.size()) == most) {
      parts.emplace_back(strip_right(text));
      break;
    }
    size_t end = 0;
    while (end < text.size() && !is_space(text.substr(end, character_size(text[end])))) {
      end += character_size(text[end]);
    }
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end, text.size()));
  }
  return parts;
}

template <bool from_right>
Value split_method(Runtime& runtime, const std::string& self, const Arguments& arguments) {
  arguments.expect("split", 2, {"sep", "maxsplit"});
  runtime.spend(self.size() * 2);
  const std::optional<Value> separator = arguments.take(0, "sep");
  const int64_t most = count_argument(arguments.take(1, "maxsplit"));
  std::string_view text = self;
  if (!separator || separator->is_none()) {
    if (from_right && most >= 0) {
      throw Problem("rsplit() at white space with a count is not supported",
                    Problem::Kind::unsupported);
    }
    return Value::list(split_at_spaces(text, most));
  }
  const std::string at = text_argument(separator, "split");
  if (at.empty()) throw Problem("empty separator");
  Items parts;
  const auto may_split = [&] { return most < 0 || static_cast<int64_t>(parts.size()) < most; };
  if (from_right) {
    for (size_t i = text.rfind(at); i != std::string_view::npos && may_split();
         i = text.rfind(at)) {
      parts.emplace_back(text.substr(i + at.size()));
      text = text.substr(0, i);
    }
    parts.emplace_back(text);
    std::ranges::reverse(parts);
    return Value::list(std::move(parts));
  }
  for (size_t i = text.find(at); i != std::string_view::npos && may_split(); i = text.find(at)) {
    parts.emplace_back(text.substr(0, i));
    text.remove_prefix(i + at.size());
  }
  parts.emplace_back(text);
  return Value::list(std::move(parts));
}

template <bool at_end>
Value affix_method(Runtime& runtime, const std::string& self, const Arguments& arguments) {
  arguments.expect(at_end ? "endswith" : "startswith", 1);
  runtime.spend(1);
  const std::optional<Value> affix = arguments.take(0, "");
  const auto fits = [&](const Value& one) {
    const std::string text = text_argument(one, at_end ? "endswith" : "startswith");
    return at_end ? self.ends_with(text) : self.starts_with(text);
  };
  if (affix && affix->is_indexable()) return std::ranges::any_of(affix->sequence().items, fits);
  return fits(affix ? *affix : Value());
}

Value remove_prefix(Runtime& runtime, const std::string& self, const Arguments& arguments) {
  const std::string affix = text_argument(arguments.take(0, ""), "removeprefix");
  runtime.spend(self.size());
  return self.starts_with(affix) ? self.substr(affix.size()) : self;
}

Value remove_suffix(Runtime& runtime, const std::string& self, const Arguments& arguments) {
  const std::string affix = text_argument(arguments.take(0, ""), "removesuffix");
  runtime.spend(self.size());
  return self.ends_with(affix) ? self.substr(0, self.size() - affix.size()) : self;
}

Value replace_method(Runtime& runtime, const std::string& self, const Arguments& arguments) {
  arguments.expect("replace", 3);
  const std::string old = text_argument(arguments.take(0, ""), "replace");
  const std::string fresh = text_argument(arguments.take(1, ""), "replace");
  return replace_text(runtime, self, old, fresh, count_argument(arguments.take(2, "")));
}

template <bool last>
Value find_place(Runtime& runtime, const std::string& self, const Arguments& arguments) {
  arguments.expect("find", 1);
  const std::string what = text_argument(arguments.take(0, ""), "find");
  runtime.spend(self.size());
  const size_t at = last ? self.rfind(what) : self.find(what);
  if (at == std::string::npos) return -1;
  return count_characters(std::string_view(self).substr(0, at));
}

Value index_method(Runtime& runtime, const std::string& self, const Arguments& arguments) {
  const Value found = find_place<false>(runtime, self, arguments);
  if (found.integer() < 0) throw Problem("substring not found");
  return found;
}

Value count_method(Runtime& runtime, const std::string& self, const Arguments& arguments) {
  arguments.expect("count", 1);
  const std::string what = text_argument(arguments.take(0, ""), "count");
  runtime.spend(self.size());
  if (what.empty()) return count_characters(self) + 1;
  int64_t count = 0;
  for (size_t i = self.find(what); i != std::string::npos; i = self.find(what, i + what.size())) {
    ++count;
  }
  return count;
}

Value join_method(Runtime& runtime, const std::string& self, const Arguments& arguments) {
  arguments.expect("join", 1);
  const std::optional<Value> items = arguments.take(0, "");
  if (!items) throw Problem("join() lacks an argument");
  std::string out;
  bool first = true;
  for (const Value& item : items_of(*items)) {
    const std::string text = text_argument(item, "join");
    runtime.spend(self.size() + text.size());
    if (!first) out += self;
    first = false;
    out += text;
  }
  return out;
}

template <bool last>
Value partition_method(Runtime& runtime, const std::string& self, const Arguments& arguments) {
  const std::string at = text_argument(arguments.take(0, ""), "partition");
  if (at.empty()) throw Problem("empty separator");
  runtime.spend(self.size());
  const size_t place = last ? self.rfind(at) : self.find(at);
  if (place == std::string::npos) {
    return last ? Value::tuple({"", "", self}) : Value::tuple({self, "", ""});
  }
  return Value::tuple({self.substr(0, place), at, self.substr(place + at.size())});
}

Value lines_method(Runtime& runtime, const std::string& self, const Arguments& arguments) {
  arguments.expect("splitlines", 1, {"keepends"});
  runtime.spend(self.size() * 2);
  Items items;
  for (std::string& line :
       split_lines(self, arguments.take(0, "keepends").value_or(false).truth())) {
    items.emplace_back(std::move(line));
  }
  return Value::list(std::move(items));
}

// Every run of letters begins with a capital.
Value title_method(Runtime& runtime, const std::string& self, const Arguments&) {
  runtime.spend(self.size());
  std::string out;
  bool inside = false;
  for_each_character(self, [&](std::string_view one) {
    const bool cased = is_cased_letter(code_point(one));
    out += !cased ? std::string(one) : inside ? lower(one) : upper(one);
    inside = cased;
  });
  return out;
}

template <typename Is>
Value all_characters(Runtime& runtime, const std::string& self, Is&& is) {
  runtime.spend(self.size());
  bool all = !self.empty();
  for_each_character(self, [&](std::string_view one) { all = all && is(one); });
  return all;
}

Value zfill_method(Runtime& runtime, const std::string& self, const Arguments& arguments) {
  const int64_t width = count_argument(arguments.take(0, ""));
  const int64_t missing = std::clamp<int64_t>(width - count_characters(self), 0, 10'000);
  runtime.spend(self.size() + static_cast<size_t>(missing));
  const bool is_signed = self.starts_with('-') || self.starts_with('+');
  return self.substr(0, is_signed) + std::string(static_cast<size_t>(missing), '0') +
         self.substr(is_signed);
}

template <Side text_at>
Value just_method(Runtime& runtime, const std::string& self, const Arguments& arguments) {
  const int64_t width = count_argument(arguments.take(0, ""));
  const std::string fill = to_text(arguments.take(1, "").value_or(" "));
  const auto missing =
      static_cast<size_t>(std::clamp<int64_t>(width - count_characters(self), 0, 100'000));
  runtime.spend(self.size() + missing);
  std::string padding;
  for (size_t i = 0; i < missing; ++i) padding += fill;
  return text_at == Side::left ? self + padding : padding + self;
}

using In = const std::string&;
using With = const Arguments&;

struct NamedMethod {
  std::string_view name;
  TextMethod method;
};

constexpr std::array methods{
    NamedMethod{"strip", strip_method<Side::both>},
    NamedMethod{"lstrip", strip_method<Side::left>},
    NamedMethod{"rstrip", strip_method<Side::right>},
    NamedMethod{"split", split_method<false>},
    NamedMethod{"rsplit", split_method<true>},
    NamedMethod{"splitlines", lines_method},
    NamedMethod{"startswith", affix_method<false>},
    NamedMethod{"endswith", affix_method<true>},
    NamedMethod{"removeprefix", remove_prefix},
    NamedMethod{"removesuffix", remove_suffix},
    NamedMethod{"replace", replace_method},
    NamedMethod{"find", find_place<false>},
    NamedMethod{"rfind", find_place<true>},
    NamedMethod{"index", index_method},
    NamedMethod{"count", count_method},
    NamedMethod{"join", join_method},
    NamedMethod{"partition", partition_method<false>},
    NamedMethod{"rpartition", partition_method<true>},
    NamedMethod{"title", title_method},
    NamedMethod{"zfill", zfill_method},
    NamedMethod{"ljust", just_method<Side::left>},
    NamedMethod{"rjust", just_method<Side::right>},
    NamedMethod{"upper",
                [](Runtime& r, In s, With) -> Value { return r.spend(s.size()), upper(s); }},
    NamedMethod{"lower",
                [](Runtime& r, In s, With) -> Value { return r.spend(s.size()), lower(s); }},
    NamedMethod{"capitalize",
                [](Runtime& r, In s, With) -> Value { return r.spend(s.size()), capitalize(s); }},
    NamedMethod{"format",
                [](Runtime& r, In s, With a) -> Value {
                  std::string text = brace_format(s, a);
                  r.spend(text.size());
                  return text;
                }},
    NamedMethod{"isdigit",
                [](Runtime& r, In s, With) {
                  return all_characters(r, s, [](auto c) { return is_digit(code_point(c)); });
                }},
    NamedMethod{"isnumeric",
                [](Runtime& r, In s, With) {
                  return all_characters(r, s, [](auto c) { return is_digit(code_point(c)); });
                }},
    NamedMethod{"isalpha",
                [](Runtime& r, In s, With) {
                  return all_characters(r, s, [](auto c) { return is_letter(code_point(c)); });
                }},
    NamedMethod{"isalnum",
                [](Runtime& r, In s, With) {
                  return all_characters(r, s, [](auto c) {
                    return is_letter(code_point(c)) || is_digit(code_point(c));
                  });
                }},
    NamedMethod{"isspace",
                [](Runtime& r, In s, With) {
                  return all_characters(r, s, [](auto c) { return is_space(c); });
                }},
    NamedMethod{"isupper",
                [](Runtime& r, In s, With) -> Value {
                  return r.spend(s.size()), upper(s) == s && lower(s) != s;
                }},
    NamedMethod{"islower",
                [](Runtime& r, In s, With) -> Value {
                  return r.spend(s.size()), lower(s) == s && upper(s) != s;
                }},
};

}  // namespace

std::string replace_text(Runtime& runtime, std::string_view text, std::string_view old,
                         std::string_view fresh, int64_t count) {
  std::string out;
  const auto grow = [&](std::string_view more) {
    out += more;
    runtime.spend(more.size());
    if (out.size() > kMaxPrinted) throw Problem("the text grows too long", Problem::Kind::limit);
  };
  if (old.empty()) {
    for (; count != 0; --count) {
      grow(fresh);
      if (text.empty()) return out;
      const size_t size = std::min(character_size(text[0]), text.size());
      grow(text.substr(0, size));
      text.remove_prefix(size);
    }
  } else {
    for (size_t i = text.find(old); i != std::string_view::npos && count != 0; i = text.find(old)) {
      grow(text.substr(0, i));
      grow(fresh);
      text.remove_prefix(i + old.size());
      --count;
    }
  }
  grow(text);
  return out;
}

std::vector<std::string> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  std::string line;
  bool pending = false;
  for (size_t i = 0; i < text.size();) {
    size_t size = character_size(text[i]);
    const std::string_view one = text.substr(i, size);
    const char32_t c = code_point(one);
    const bool ends =
        (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (c == '\r' && text.substr(i + 1).starts_with('\n')) size = 2;
    if (!ends || keep_ends) line += text.substr(i, size);
    pending = !ends;
    if (ends) {
      lines.push_back(std::move(line));
      line.clear();
    }
    i += size;
  }
  if (pending) lines.push_back(std::move(line));
  return lines;
}

TextMethod find_text_method(std::string_view name) {
  const auto found = std::ranges::find(methods, name, &NamedMethod::name);
  return found == methods.end() ? nullptr : found->method;
}

}  // namespace kinora::jinja
