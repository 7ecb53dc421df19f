#include "text/jinja/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace kinora::jinja {
ExpressionPtr ExpressionParser::make(Op op, int line, std::vector<ExpressionPtr> parts) const {
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

ExpressionPtr ExpressionParser::constant(Value value, int line) const {
  ExpressionPtr made = make(Op::constant, line);
  made->value = std::move(value);
  return made;
}

ExpressionPtr ExpressionParser::parse_expression(bool with_choice) {
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

ExpressionPtr ExpressionParser::parse_or() {
  ExpressionPtr left = parse_and();
  while (is_name("or")) {
    const int line = now().line;
    advance();
    left = make_of(Op::disjunction, line, std::move(left), parse_and());
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_and() {
  ExpressionPtr left = parse_not();
  while (is_name("and")) {
    const int line = now().line;
    advance();
    left = make_of(Op::conjunction, line, std::move(left), parse_not());
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!is_name("not")) return parse_compare();
  const Nesting nesting(*this);
  const int line = now().line;
  advance();
  return make_of(Op::negation, line, parse_not());
}

ExpressionPtr ExpressionParser::parse_compare() {
  const int line = now().line;
  std::vector<ExpressionPtr> parts;
  std::vector<std::string> operators;
  parts.push_back(parse_sum());
  for (;;) {
    constexpr std::array<std::string_view, 6> comparisons{"==", "!=", "<", "<=", ">", ">="};
    if (now().kind == Kind::op && std::ranges::find(comparisons, now().text) != comparisons.end()) {
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

ExpressionPtr ExpressionParser::parse_sum() {
  ExpressionPtr left = parse_concatenation();
  while (is_op("+") || is_op("-")) {
    const Op op = is_op("+") ? Op::add : Op::subtract;
    const int line = now().line;
    advance();
    left = make_of(op, line, std::move(left), parse_concatenation());
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_concatenation() {
  const int line = now().line;
  std::vector<ExpressionPtr> parts;
  parts.push_back(parse_product());
  while (skip_op("~")) parts.push_back(parse_product());
  if (parts.size() == 1) return std::move(parts[0]);
  return make(Op::concatenate, line, std::move(parts));
}

ExpressionPtr ExpressionParser::parse_product() {
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

ExpressionPtr ExpressionParser::parse_power() {
  ExpressionPtr left = parse_unary(true);
  while (is_op("**")) {
    const int line = now().line;
    advance();
    left = make_of(Op::power, line, std::move(left), parse_unary(true));
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filter) {
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

ExpressionPtr ExpressionParser::parse_primary() {
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

bool ExpressionParser::at_tuple_end() const {
  return now().kind == Kind::variable_end || now().kind == Kind::block_end || is_op(")") ||
         is_name("recursive");
}

ExpressionPtr ExpressionParser::parse_tuple(bool in_brackets, bool with_choice) {
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

ExpressionPtr ExpressionParser::parse_list() {
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

ExpressionPtr ExpressionParser::parse_dict() {
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

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr result) {
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

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr object, int line) {
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

ExpressionPtr ExpressionParser::parse_call(ExpressionPtr callee) {
  const int line = now().line;
  ExpressionPtr made = make_of(Op::call, line, std::move(callee));
  parse_arguments(*made);
  return made;
}

void ExpressionParser::parse_arguments(Expression& call) {
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

std::string ExpressionParser::take_dotted_name() {
  std::string name = take_name();
  while (skip_op(".")) name += "." + take_name();
  return name;
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr result) {
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

ExpressionPtr ExpressionParser::parse_filter(ExpressionPtr input) {
  const int line = now().line;
  std::string name = take_dotted_name();
  ExpressionPtr made = make_of(Op::filter, line, std::move(input));
  made->name = std::move(name);
  if (is_op("(")) parse_arguments(*made);
  return made;
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr input) {
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

}  // namespace kinora::jinja
