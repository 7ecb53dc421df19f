#include "text/jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "text/jinja/expression_parser.h"

namespace kinora::jinja {
namespace {

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Body run() {
    Body body = parse_body({});
    return body;
  }

 private:
  // Up to a tag whose name is one of `ends`; the tag's name is then the present token.
  Body parse_body(const std::vector<std::string_view>& ends) {
    const Nesting nesting(*this);
    Body body;
    for (;;) {
      const int line = now().line;
      switch (now().kind) {
        case Kind::data: {
          Statement& made = body.emplace_back();
          made.line = line;
          made.text = now().text;
          advance();
          break;
        }
        case Kind::variable_begin: {
          advance();
          Statement made;
          made.kind = Statement::Kind::output;
          made.line = line;
          made.expression = parse_tuple();
          expect(Kind::variable_end, "'}}'");
          body.push_back(std::move(made));
          break;
        }
        case Kind::block_begin: {
          advance();
          const bool ended =
              now().kind == Kind::name && std::ranges::find(ends, now().text) != ends.end();
          if (ended) return body;
          body.push_back(parse_statement());
          expect(Kind::block_end, "'%}'");
          break;
        }
        default:
          if (ends.empty()) return body;
          fail(fmt::format("the template ends where '{}' should stand", ends.back()));
      }
    }
  }

  Body parse_block(const std::vector<std::string_view>& ends) {
    skip_op(":");
    expect(Kind::block_end, "'%}'");
    return parse_body(ends);
  }
  // To the one end, which is passed.
  Body parse_whole_block(std::string_view end) {
    Body body = parse_block({end});
    advance();
    return body;
  }

  Statement parse_statement() {
    Statement made;
    made.line = now().line;
    const std::string tag = take_name();
    if (tag == "if") {
      parse_if(made);
    } else if (tag == "for") {
      parse_for(made);
    } else if (tag == "set") {
      parse_set(made);
    } else if (tag == "macro") {
      parse_macro(made);
    } else if (tag == "call") {
      parse_call_block(made);
    } else if (tag == "filter") {
      made.kind = Statement::Kind::filter;
      made.expression = parse_filter(nullptr);
      while (skip_op("|")) made.expression = parse_filter(std::move(made.expression));
      made.body = parse_whole_block("endfilter");
    } else if (tag == "with") {
      parse_with(made);
    } else if (tag == "generation") {
      made.kind = Statement::Kind::scope;
      made.body = parse_whole_block("endgeneration");
    } else if (tag == "break" || tag == "continue") {
      if (loops_ == 0) fail(fmt::format("'{}' stands outside of a loop", tag));
      made.kind = tag == "break" ? Statement::Kind::stop : Statement::Kind::next;
    } else {
      constexpr std::array<std::string_view, 8> known{"include", "import", "from",       "extends",
                                                      "block",   "print",  "autoescape", "trans"};
      const bool real = std::ranges::find(known, tag) != known.end();
      if (real) fail(fmt::format("the tag '{}' is not supported", tag), Problem::Kind::unsupported);
      fail(fmt::format("there is no tag '{}'", tag));
    }
    return made;
  }

  void parse_if(Statement& made) {
    made.kind = Statement::Kind::branch;
    for (;;) {
      Statement::Branch branch;
      branch.condition = parse_tuple(false, false);
      branch.body = parse_block({"elif", "else", "endif"});
      made.branches.push_back(std::move(branch));
      const std::string end = take_name();
      if (end == "endif") return;
      if (end == "else") {
        Statement::Branch last;
        last.body = parse_whole_block("endif");
        made.branches.push_back(std::move(last));
        return;
      }
    }
  }

  // Names inside `parse` are gathered apart, to see which of the magic ones a body uses.
  template <typename Parse>
  std::set<std::string> names_in(Parse&& parse) {
    std::set<std::string> outer;
    outer.swap(names_);
    parse();
    outer.swap(names_);
    names_.insert(outer.begin(), outer.end());
    return outer;
  }

  void parse_for(Statement& made) {
    made.kind = Statement::Kind::loop;
    made.target = parse_target(false);
    expect_name("in");
    made.expression = parse_tuple(false, false);
    if (skip_name("if")) made.condition = parse_expression();
    made.recursive = skip_name("recursive");
    ++loops_;
    made.uses_loop = names_in([&] {
                       made.body = parse_block({"endfor", "else"});
                     }).contains("loop");
    --loops_;
    if (take_name() == "else") made.otherwise = parse_whole_block("endfor");
  }

  void parse_set(Statement& made) {
    made.target = parse_target(true);
    if (skip_op("=")) {
      made.kind = Statement::Kind::assign;
      made.expression = parse_tuple();
      return;
    }
    made.kind = Statement::Kind::capture;
    while (skip_op("|")) made.expression = parse_filter(std::move(made.expression));
    made.body = parse_whole_block("endset");
  }

  Target parse_one_target(bool with_attribute) {
    const Nesting nesting(*this);
    if (skip_op("(")) {
      Target target = parse_target(with_attribute);
      expect_op(")");
      return target;
    }
    Target target;
    target.name = take_name();
    if (with_attribute && skip_op(".")) target.attribute = take_name();
    return target;
  }

  Target parse_target(bool with_attribute) {
    Target first = parse_one_target(with_attribute);
    if (!is_op(",")) return first;
    Target all;
    all.parts.push_back(std::move(first));
    while (skip_op(",")) {
      if (is_name("in") || is_op("=") || is_op(")")) break;
      all.parts.push_back(parse_one_target(with_attribute));
    }
    return all;
  }

  void parse_parameters(Statement& made) {
    expect_op("(");
    while (!is_op(")")) {
      Parameter parameter;
      parameter.name = take_name();
      if (skip_op("=")) {
        parameter.otherwise = parse_expression();
      } else if (!made.parameters.empty() && made.parameters.back().otherwise) {
        fail("a parameter without a default follows one that has it");
      }
      made.parameters.push_back(std::move(parameter));
      if (!is_op(")")) expect_op(",");
    }
    advance();
  }

  void parse_macro_body(Statement& made, std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    const std::set<std::string> names = names_in([&] { made.body = parse_whole_block(end); });
    loops_ = loops;
    made.takes_values = names.contains("varargs");
    made.takes_named = names.contains("kwargs");
    made.takes_caller = names.contains("caller");
  }

  void parse_macro(Statement& made) {
    made.kind = Statement::Kind::macro;
    made.text = take_name();
    parse_parameters(made);
    parse_macro_body(made, "endmacro");
  }

  void parse_call_block(Statement& made) {
    made.kind = Statement::Kind::call_block;
    if (is_op("(")) parse_parameters(made);
    made.expression = parse_expression();
    if (made.expression->op != Op::call) fail("'call' needs a call");
    parse_macro_body(made, "endcall");
  }

  void parse_with(Statement& made) {
    made.kind = Statement::Kind::with;
    while (now().kind != Kind::block_end) {
      Target target = parse_target(false);
      expect_op("=");
      made.assignments.emplace_back(std::move(target), parse_expression());
      if (now().kind != Kind::block_end) expect_op(",");
    }
    made.body = parse_whole_block("endwith");
  }

  int loops_ = 0;
};

}  // namespace

Body parse(std::string_view source) { return Parser(source).run(); }

}  // namespace kinora::jinja
