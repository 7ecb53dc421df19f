#include "text/jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "text/jinja/lexer.h"

namespace kinora::jinja {
namespace {

using Kind = Token::Kind;
using Op = Expression::Op;

constexpr int kMaxNesting = 100;    // of brackets and blocks
constexpr int kMaxTreeDepth = 500;  // of an expression, however it is written

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  Body run() {
    Body body = parse_body({});
    return body;
  }

 private:
  // Counts how deeply brackets and blocks nest.
  class Nesting {
   public:
    explicit Nesting(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMaxNesting)
        parser_.fail("the template nests too deeply", Problem::Kind::limit);
    }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Parser& parser_;
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

  ExpressionPtr make(Op op, int line, std::vector<ExpressionPtr> parts = {}) const {
    auto made = std::make_unique<Expression>();
    made->op = op;
    made->line = line;
    made->parts = std::move(parts);
    for (const ExpressionPtr& part : made->parts) {
      if (part) made->depth = std::max(made->depth, part->depth + 1);
    }
    if (made->depth > kMaxTreeDepth) fail("an expression is too long", Problem::Kind::limit);
    return made;
  }
  template <typename... Parts>
  ExpressionPtr make_of(Op op, int line, Parts... part) const {
    std::vector<ExpressionPtr> parts;
    (parts.push_back(std::move(part)), ...);
    return make(op, line, std::move(parts));
  }
  ExpressionPtr constant(Value value, int line) const {
    ExpressionPtr made = make(Op::constant, line);
    made->value = std::move(value);
    return made;
  }

  // Expressions, from the loosest binding to the tightest.

  ExpressionPtr parse_expression(bool with_choice = true) {
    const Nesting nesting(*this);
    ExpressionPtr result = parse_or();
    while (with_choice && is_name("if")) {
      const int line = now().line;
      advance();
      ExpressionPtr condition = parse_or();
      ExpressionPtr otherwise = skip_name("else") ? parse_expression() : nullptr;
      result =
          make_of(Op::choice, line, std::move(condition), std::move(result), std::move(otherwise));
    }
    return result;
  }

  ExpressionPtr parse_or() {
    ExpressionPtr left = parse_and();
    while (is_name("or")) {
      const int line = now().line;
      advance();
      left = make_of(Op::disjunction, line, std::move(left), parse_and());
    }
    return left;
  }

  ExpressionPtr parse_and() {
    ExpressionPtr left = parse_not();
    while (is_name("and")) {
      const int line = now().line;
      advance();
      left = make_of(Op::conjunction, line, std::move(left), parse_not());
    }
    return left;
  }

  ExpressionPtr parse_not() {
    if (!is_name("not")) return parse_compare();
    const Nesting nesting(*this);
    const int line = now().line;
    advance();
    return make_of(Op::negation, line, parse_not());
  }

  ExpressionPtr parse_compare() {
    const int line = now().line;
    std::vector<ExpressionPtr> parts;
    std::vector<std::string> operators;
    parts.push_back(parse_sum());
    for (;;) {
      constexpr std::array<std::string_view, 6> comparisons{"==", "!=", "<", "<=", ">", ">="};
      if (now().kind == Kind::op &&
          std::ranges::find(comparisons, now().text) != comparisons.end()) {
        operators.push_back(now().text);
        advance();
      } else if (skip_name("in")) {
        operators.emplace_back("in");
      } else if (is_name("not") && following().kind == Kind::name && following().text == "in") {
        advance();
        advance();
        operators.emplace_back("not in");
      } else {
        break;
      }
      parts.push_back(parse_sum());
    }
    if (operators.empty()) return std::move(parts[0]);
    ExpressionPtr made = make(Op::compare, line, std::move(parts));
    made->operators = std::move(operators);
    return made;
  }

  ExpressionPtr parse_sum() {
    ExpressionPtr left = parse_concatenation();
    while (is_op("+") || is_op("-")) {
      const Op op = is_op("+") ? Op::add : Op::subtract;
      const int line = now().line;
      advance();
      left = make_of(op, line, std::move(left), parse_concatenation());
    }
    return left;
  }

  ExpressionPtr parse_concatenation() {
    const int line = now().line;
    std::vector<ExpressionPtr> parts;
    parts.push_back(parse_product());
    while (skip_op("~")) parts.push_back(parse_product());
    if (parts.size() == 1) return std::move(parts[0]);
    return make(Op::concatenate, line, std::move(parts));
  }

  ExpressionPtr parse_product() {
    ExpressionPtr left = parse_power();
    for (;;) {
      const int line = now().line;
      Op op;
      if (is_op("*")) {
        op = Op::multiply;
      } else if (is_op("/")) {
        op = Op::divide;
      } else if (is_op("//")) {
        op = Op::floor_divide;
      } else if (is_op("%")) {
        op = Op::modulo;
      } else {
        return left;
      }
      advance();
      left = make_of(op, line, std::move(left), parse_power());
    }
  }

  ExpressionPtr parse_power() {
    ExpressionPtr left = parse_unary(true);
    while (is_op("**")) {
      const int line = now().line;
      advance();
      left = make_of(Op::power, line, std::move(left), parse_unary(true));
    }
    return left;
  }

  ExpressionPtr parse_unary(bool with_filter) {
    const Nesting nesting(*this);
    const int line = now().line;
    ExpressionPtr result;
    if (skip_op("-")) {
      result = make_of(Op::negative, line, parse_unary(false));
    } else if (skip_op("+")) {
      result = make_of(Op::positive, line, parse_unary(false));
    } else {
      result = parse_primary();
    }
    result = parse_postfix(std::move(result));
    return with_filter ? parse_filters(std::move(result)) : std::move(result);
  }

  ExpressionPtr parse_primary() {
    const int line = now().line;
    if (now().kind == Kind::name) {
      const std::string name = take_name();
      if (name == "true" || name == "True") return constant(true, line);
      if (name == "false" || name == "False") return constant(false, line);
      if (name == "none" || name == "None") return constant({}, line);
      names_.insert(name);
      ExpressionPtr made = make(Op::name, line);
      made->name = name;
      return made;
    }
    if (now().kind == Kind::string) {
      std::string text;
      for (; now().kind == Kind::string; advance()) text += now().text;
      return constant(std::move(text), line);
    }
    if (now().kind == Kind::number) {
      ExpressionPtr made = constant(now().number, line);
      advance();
      return made;
    }
    if (skip_op("(")) {
      ExpressionPtr made = parse_tuple(true, true);
      expect_op(")");
      return made;
    }
    if (is_op("[")) return parse_list();
    if (is_op("{")) return parse_dict();
    fail(fmt::format("unexpected {}", described(now())));
  }

  bool at_tuple_end() const {
    return now().kind == Kind::variable_end || now().kind == Kind::block_end || is_op(")") ||
           is_name("recursive");
  }

  // One expression, or several with commas between them, which make a tuple.
  ExpressionPtr parse_tuple(bool in_brackets = false, bool with_choice = true) {
    const int line = now().line;
    std::vector<ExpressionPtr> parts;
    bool is_tuple = false;
    while (!at_tuple_end()) {
      parts.push_back(parse_expression(with_choice));
      if (!skip_op(",")) break;
      is_tuple = true;
    }
    if (!is_tuple && !parts.empty()) return std::move(parts[0]);
    if (!is_tuple && !in_brackets) unexpected("an expression");
    return make(Op::tuple, line, std::move(parts));
  }

  ExpressionPtr parse_list() {
    const int line = now().line;
    expect_op("[");
    std::vector<ExpressionPtr> parts;
    while (!is_op("]")) {
      parts.push_back(parse_expression());
      if (!is_op("]")) expect_op(",");
    }
    advance();
    return make(Op::list, line, std::move(parts));
  }

  ExpressionPtr parse_dict() {
    const int line = now().line;
    expect_op("{");
    std::vector<ExpressionPtr> parts;
    while (!is_op("}")) {
      parts.push_back(parse_expression());
      expect_op(":");
      parts.push_back(parse_expression());
      if (!is_op("}")) expect_op(",");
    }
    advance();
    return make(Op::dict, line, std::move(parts));
  }

  ExpressionPtr parse_postfix(ExpressionPtr result) {
    for (;;) {
      const int line = now().line;
      if (skip_op(".")) {
        if (now().kind == Kind::number) {
          ExpressionPtr index = constant(now().number, line);
          advance();
          result = make_of(Op::item, line, std::move(result), std::move(index));
          continue;
        }
        std::string name = take_name();
        result = make_of(Op::attribute, line, std::move(result));
        result->name = std::move(name);
      } else if (skip_op("[")) {
        result = parse_subscript(std::move(result), line);
      } else if (is_op("(")) {
        result = parse_call(std::move(result));
      } else {
        return result;
      }
    }
  }

  ExpressionPtr parse_subscript(ExpressionPtr object, int line) {
    const auto bound = [&]() -> ExpressionPtr {
      return is_op(":") || is_op("]") ? nullptr : parse_expression();
    };
    ExpressionPtr first = bound();
    if (!is_op(":")) {
      if (!first) unexpected("an index");
      expect_op("]");
      return make_of(Op::item, line, std::move(object), std::move(first));
    }
    advance();
    ExpressionPtr last = bound();
    ExpressionPtr step;
    if (skip_op(":")) step = bound();
    expect_op("]");
    return make_of(Op::slice, line, std::move(object), std::move(first), std::move(last),
                   std::move(step));
  }

  ExpressionPtr parse_call(ExpressionPtr callee) {
    const int line = now().line;
    ExpressionPtr made = make_of(Op::call, line, std::move(callee));
    parse_arguments(*made);
    return made;
  }

  // Fills in the arguments and the depth that they give.
  void parse_arguments(Expression& call) {
    CallArguments& arguments = call.arguments;
    expect_op("(");
    while (!is_op(")")) {
      ExpressionPtr value;
      if (skip_op("*")) {
        if (arguments.spread || arguments.spread_named) fail("invalid syntax of a call");
        arguments.spread = parse_expression();
      } else if (skip_op("**")) {
        if (arguments.spread_named) fail("invalid syntax of a call");
        arguments.spread_named = parse_expression();
      } else if (now().kind == Kind::name && following().kind == Kind::op &&
                 following().text == "=") {
        if (arguments.spread_named) fail("invalid syntax of a call");
        std::string name = take_name();
        advance();
        arguments.named.emplace_back(std::move(name), parse_expression());
      } else {
        if (arguments.spread || arguments.spread_named || !arguments.named.empty()) {
          fail("invalid syntax of a call");
        }
        arguments.values.push_back(parse_expression());
      }
      if (!is_op(")")) expect_op(",");
    }
    advance();
    const auto count = [&](const ExpressionPtr& part) {
      if (part) call.depth = std::max(call.depth, part->depth + 1);
    };
    for (const ExpressionPtr& value : arguments.values) count(value);
    for (const auto& [name, value] : arguments.named) count(value);
    count(arguments.spread);
    count(arguments.spread_named);
    if (call.depth > kMaxTreeDepth) fail("an expression is too long", Problem::Kind::limit);
  }

  std::string take_dotted_name() {
    std::string name = take_name();
    while (skip_op(".")) name += "." + take_name();
    return name;
  }

  // |filters, `is` tests and calls of what they give.
  ExpressionPtr parse_filters(ExpressionPtr result) {
    for (;;) {
      if (skip_op("|")) {
        result = parse_filter(std::move(result));
      } else if (is_name("is")) {
        result = parse_test(std::move(result));
      } else if (is_op("(")) {
        result = parse_call(std::move(result));
      } else {
        return result;
      }
    }
  }

  ExpressionPtr parse_filter(ExpressionPtr input) {
    const int line = now().line;
    std::string name = take_dotted_name();
    ExpressionPtr made = make_of(Op::filter, line, std::move(input));
    made->name = std::move(name);
    if (is_op("(")) parse_arguments(*made);
    return made;
  }

  ExpressionPtr parse_test(ExpressionPtr input) {
    const int line = now().line;
    advance();
    const bool negated = skip_name("not");
    std::string name = take_dotted_name();
    ExpressionPtr made = make_of(Op::test, line, std::move(input));
    made->name = std::move(name);
    const bool value_follows =
        now().kind == Kind::string || now().kind == Kind::number || is_op("[") || is_op("{") ||
        (now().kind == Kind::name && !is_name("else") && !is_name("or") && !is_name("and"));
    if (is_op("(")) {
      parse_arguments(*made);
    } else if (value_follows) {
      if (is_name("is")) fail("tests cannot be chained with is");
      made->arguments.values.push_back(parse_postfix(parse_primary()));
      made->depth = std::max(made->depth, made->arguments.values[0]->depth + 1);
    }
    if (!negated) return made;
    return make_of(Op::negation, line, std::move(made));
  }

  // Statements.

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

  std::vector<Token> tokens_;
  size_t place_ = 0;
  int nesting_ = 0;
  int loops_ = 0;
  std::set<std::string> names_;
};

}  // namespace

Body parse(std::string_view source) { return Parser(source).run(); }

}  // namespace kinora::jinja
