// The tokens of a template, read one after the other: what parsing of expressions and of statements
// has in common. Used by expression_parser.h and parser.cc.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/lexer.h"

namespace kinora::jinja {

class TokenReader {
 public:
  explicit TokenReader(std::string_view source) : tokens_(tokenize(source)) {}

 protected:
  using Kind = Token::Kind;
  // Counts how deeply brackets and blocks nest.
  class Nesting {
   public:
    explicit Nesting(TokenReader& reader) : reader_(reader) {
      if (++reader_.nesting_ > kMaxNesting)
        reader_.fail("the template nests too deeply", Problem::Kind::limit);
    }
    ~Nesting() { --reader_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    TokenReader& reader_;
  };

  [[noreturn]] void fail(std::string what, Problem::Kind kind = Problem::Kind::wrong) const {
    throw ProblemAtLine{Problem(std::move(what), kind), now().line};
  }
  [[noreturn]] void unexpected(std::string_view wanted) const {
    fail(fmt::format("expected {}, found {}", wanted, described(now())));
  }
  static std::string described(const Token& token) {
    switch (token.kind) {
      case Kind::data:
        return "text";
      case Kind::variable_begin:
        return "'{{'";
      case Kind::variable_end:
        return "'}}'";
      case Kind::block_begin:
        return "'{%'";
      case Kind::block_end:
        return "'%}'";
      case Kind::string:
        return "a string";
      case Kind::end:
        return "the end of the template";
      default:
        return fmt::format("'{}'", token.text);
    }
  }

  const Token& now() const { return tokens_[place_]; }
  const Token& following() const { return tokens_[std::min(place_ + 1, tokens_.size() - 1)]; }
  void advance() {
    if (place_ + 1 < tokens_.size()) ++place_;
  }
  bool is_op(std::string_view text) const { return now().kind == Kind::op && now().text == text; }
  bool is_name(std::string_view text) const {
    return now().kind == Kind::name && now().text == text;
  }
  bool skip_op(std::string_view text) {
    const bool found = is_op(text);
    if (found) advance();
    return found;
  }
  bool skip_name(std::string_view text) {
    const bool found = is_name(text);
    if (found) advance();
    return found;
  }
  void expect_op(std::string_view text) {
    if (!skip_op(text)) unexpected(fmt::format("'{}'", text));
  }
  void expect_name(std::string_view text) {
    if (!skip_name(text)) unexpected(fmt::format("'{}'", text));
  }
  void expect(Kind kind, std::string_view what) {
    if (now().kind != kind) unexpected(what);
    advance();
  }
  std::string take_name() {
    if (now().kind != Kind::name) unexpected("a name");
    std::string name = now().text;
    advance();
    return name;
  }

 private:
  static constexpr int kMaxNesting = 100;  // of brackets and blocks

  std::vector<Token> tokens_;
  size_t place_ = 0;
  int nesting_ = 0;
};

}  // namespace kinora::jinja
