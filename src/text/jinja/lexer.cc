#include "text/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "text/jinja/characters.h"
#include "text/tokenizer_utf8.h"

namespace kinora::jinja {
namespace {

constexpr std::array<std::string_view, 26> operators{
    "**", "//", "==", "!=", "<=", ">=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

// With \n for every kind of line end, and without the last of them.
std::string with_plain_line_ends(std::string_view source) {
  std::string result;
  result.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      result += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      result += source[i];
    }
  }
  if (result.ends_with('\n')) result.pop_back();
  return result;
}

bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool is_decimal(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(with_plain_line_ends(source)) {}

  std::vector<Token> run() {
    while (position_ < source_.size()) {
      const size_t tag = next_tag();
      if (tag == std::string::npos) {
        add_data(rest());
        position_ = source_.size();
        break;
      }
      read_tag(tag);
    }
    add(Token::Kind::end);
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(std::string what) const {
    throw ProblemAtLine{Problem(std::move(what)), line_};
  }

  std::string_view rest() const { return std::string_view(source_).substr(position_); }
  bool looking_at(std::string_view text) const { return rest().starts_with(text); }

  void add(Token::Kind kind, std::string text = {}) {
    tokens_.push_back({kind, line_, std::move(text), {}});
  }
  void add_data(std::string_view text) {
    if (!text.empty()) add(Token::Kind::data, std::string(text));
  }

  // Goes on by `count` bytes and counts the lines.
  void advance(size_t count) {
    const std::string_view passed = rest().substr(0, count);
    line_ += static_cast<int>(std::ranges::count(passed, '\n'));
    position_ += passed.size();
    if (!passed.empty()) line_starts_ = passed.back() == '\n';
  }

  size_t next_tag() const {
    for (size_t i = source_.find('{', position_); i != std::string::npos;
         i = source_.find('{', i + 1)) {
      if (i + 1 < source_.size() &&
          std::string_view("{%#").find(source_[i + 1]) != std::string::npos) {
        return i;
      }
    }
    return std::string::npos;
  }

  // The text before a tag, shortened as the tag's sign (-, + or none) says.
  std::string_view text_before(size_t tag, char sign, bool is_variable) const {
    const std::string_view text = rest().substr(0, tag - position_);
    if (sign == '-') return strip_right(text);
    if (sign == '+' || is_variable) return text;
    const size_t newline = text.rfind('\n');
    const size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
    if (begin == 0 && !line_starts_) return text;
    return strip_left(text.substr(begin)).empty() ? text.substr(0, begin) : text;
  }

  void read_tag(size_t tag) {
    const char type = source_[tag + 1];
    char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    if (sign != '-' && sign != '+') sign = '\0';
    add_data(text_before(tag, sign, type == '{'));
    advance(tag - position_);
    const size_t opening = sign == '\0' ? 2 : 3;
    if (type == '#') {
      const size_t end = source_.find("#}", position_ + opening);
      if (end == std::string::npos) fail("a comment is not closed with #}");
      const char before = end > position_ + opening ? source_[end - 1] : '\0';
      advance(end - position_);
      close(before);
      return;
    }
    if (type == '%' && read_raw(opening)) return;
    const bool is_variable = type == '{';
    add(is_variable ? Token::Kind::variable_begin : Token::Kind::block_begin);
    advance(opening);
    read_inside(is_variable);
  }

  // Passes "%}" or "#}" and what it swallows; `sign` stands before it.
  void close(char sign) {
    advance(2);
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && looking_at("\n")) {
      advance(1);
    }
  }

  void skip_space() { advance(rest().size() - strip_left(rest()).size()); }

  // Whether `name` and a closing %} stand at `place`; `place` is moved behind them.
  bool find_bare_tag(size_t& place, std::string_view name, char& sign) const {
    const auto skip = [&] {
      const std::string_view left = std::string_view(source_).substr(place);
      place += left.size() - strip_left(left).size();
    };
    skip();
    if (!std::string_view(source_).substr(place).starts_with(name)) return false;
    place += name.size();
    skip();
    sign = '\0';
    if (place < source_.size() && (source_[place] == '-' || source_[place] == '+')) {
      sign = source_[place++];
    }
    if (!std::string_view(source_).substr(place).starts_with("%}")) return false;
    place += 2;
    return true;
  }

  bool read_raw(size_t opening) {
    size_t place = position_ + opening;
    char sign = '\0';
    if (!find_bare_tag(place, "raw", sign) || sign == '+') return false;
    const int begin_line = line_;
    advance(place - position_);
    if (sign == '-') skip_space();
    for (size_t tag = source_.find("{%", position_); tag != std::string::npos;
         tag = source_.find("{%", tag + 1)) {
      size_t end = tag + 2;
      char before = end < source_.size() ? source_[end] : '\0';
      if (before == '-' || before == '+') {
        ++end;
      } else {
        before = '\0';
      }
      char after = '\0';
      if (!find_bare_tag(end, "endraw", after)) continue;
      add_data(text_before(tag, before, false));
      advance(end - 2 - position_);
      close(after);
      return true;
    }
    line_ = begin_line;
    fail("raw is not closed with endraw");
  }

  void read_inside(bool is_variable) {
    const std::string_view closing = is_variable ? "}}" : "%}";
    for (;;) {
      if (position_ >= source_.size()) fail(fmt::format("a tag is not closed with {}", closing));
      if (open_.empty()) {
        const char sign = source_[position_];
        const bool signed_end =
            (sign == '-' || (sign == '+' && !is_variable)) && rest().substr(1).starts_with(closing);
        if (signed_end || looking_at(closing)) {
          add(is_variable ? Token::Kind::variable_end : Token::Kind::block_end);
          if (signed_end) advance(1);
          if (!is_variable) return close(signed_end ? sign : '\0');
          advance(2);
          if (signed_end) skip_space();
          return;
        }
      }
      const std::string_view first = rest().substr(0, character_size(source_[position_]));
      if (is_space(first)) {
        advance(first.size());
      } else if (is_decimal(source_[position_])) {
        read_number();
      } else if (is_name_start(source_[position_])) {
        size_t size = 1;
        while (size < rest().size() && (is_name_start(rest()[size]) || is_decimal(rest()[size]))) {
          ++size;
        }
        add(Token::Kind::name, std::string(rest().substr(0, size)));
        advance(size);
      } else if (source_[position_] == '\'' || source_[position_] == '"') {
        read_string();
      } else {
        read_operator();
      }
    }
  }

  void read_operator() {
    const auto found =
        std::ranges::find_if(operators, [&](std::string_view one) { return looking_at(one); });
    if (found == operators.end()) {
      fail(fmt::format("unexpected character '{}'", rest().substr(0, 1)));
    }
    const char c = (*found)[0];
    if (c == '(' || c == '[' || c == '{') open_ += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open_.empty() || open_.back() != c) fail(fmt::format("unexpected '{}'", c));
      open_.pop_back();
    }
    add(Token::Kind::op, std::string(*found));
    advance(found->size());
  }

  void read_number() {
    // Digits with single underscores between them, in the base that a prefix names.
    const std::string_view text = rest();
    int base = 10;
    size_t size = 0;
    if (text.size() > 2 && text[0] == '0') {
      const char letter = static_cast<char>(text[1] | 0x20);
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
      if (base != 10) size = 2;
    }
    std::string digits;
    const auto take_digits = [&] {
      for (; size < text.size(); ++size) {
        const char c = text[size];
        const char lower = static_cast<char>(c | 0x20);
        const bool digit = is_decimal(c) || (base == 16 && lower >= 'a' && lower <= 'f');
        if (!digit && !(c == '_' && size + 1 < text.size() && is_decimal(text[size + 1]))) break;
        if (digit) digits += c;
      }
    };
    take_digits();
    bool real = false;
    if (base == 10 && size + 1 < text.size() && text[size] == '.' && is_decimal(text[size + 1])) {
      real = true;
      digits += '.';
      ++size;
      take_digits();
    }
    if (base == 10 && size < text.size() && (text[size] | 0x20) == 'e') {
      size_t next = size + 1;
      if (next < text.size() && (text[next] == '+' || text[next] == '-')) ++next;
      if (next < text.size() && is_decimal(text[next])) {
        real = true;
        digits += text.substr(size, next - size);
        size = next;
        take_digits();
      }
    }
    Token token{Token::Kind::number, line_, std::string(text.substr(0, size)), {}};
    if (real) {
      token.number = std::strtod(digits.c_str(), nullptr);
    } else {
      int64_t value = 0;
      const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
      if (read.ec != std::errc()) fail(fmt::format("the number {} is too large", token.text));
      token.number = value;
    }
    tokens_.push_back(std::move(token));
    advance(size);
  }

  void read_string() {
    const char quote = source_[position_];
    size_t end = position_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail("a string is not closed");
    const std::string_view inside =
        std::string_view(source_).substr(position_ + 1, end - position_ - 1);
    add(Token::Kind::string, unescaped(inside));
    advance(end + 1 - position_);
  }

  std::string unescaped(std::string_view text) const {
    std::string result;
    for (size_t i = 0; i < text.size();) {
      if (text[i] != '\\') {
        result += text[i++];
        continue;
      }
      const char c = text[i + 1];  // a backslash is never the last
      i += 2;
      constexpr std::string_view plain = "\n\\'\"abfnrtv";
      constexpr std::array<std::string_view, 11> meaning{"",   "\\", "'",  "\"", "\a", "\b",
                                                         "\f", "\n", "\r", "\t", "\v"};
      if (const size_t known = plain.find(c); known != std::string_view::npos) {
        result += meaning[known];
      } else if (c == 'x' || c == 'u' || c == 'U') {
        append_code(text.substr(i), c == 'x' ? 2 : c == 'u' ? 4 : 8, 16, result);
        i += c == 'x' ? 2 : c == 'u' ? 4 : 8;
      } else if (c >= '0' && c <= '7') {
        size_t size = 1;
        while (size < 3 && i - 1 + size < text.size() && text[i - 1 + size] >= '0' &&
               text[i - 1 + size] <= '7') {
          ++size;
        }
        append_code(text.substr(i - 1), size, 8, result);
        i += size - 1;
      } else if (c == 'N') {
        fail("characters by name (\\N) are not supported");
      } else {
        result += '\\';
        result += c;
      }
    }
    return result;
  }

  void append_code(std::string_view digits, size_t size, int base, std::string& out) const {
    uint32_t code = 0;
    const char* end = digits.data() + std::min(size, digits.size());
    const auto read = std::from_chars(digits.data(), end, code, base);
    const bool surrogate = code >= 0xd800 && code < 0xe000;
    if (digits.size() < size || read.ec != std::errc() || read.ptr != end || code > 0x10ffff ||
        surrogate) {
      fail("a string has a broken escape");
    }
    tokenizer::append_utf8(code, out);
  }

  std::string source_;
  size_t position_ = 0;
  int line_ = 1;
  bool line_starts_ = true;
  std::string open_;  // what closes the brackets that are open
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace kinora::jinja
