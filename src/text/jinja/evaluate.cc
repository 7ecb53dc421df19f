// The interpreter's expressions.
#include <fmt/format.h>

#include "text/jinja/arithmetic.h"
#include "text/jinja/characters.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/printed.h"

namespace kinora::jinja {
namespace {

using Op = Expression::Op;

std::string shown_type(const Value& object) {
  return object.is_none() ? "None" : fmt::format("{} object", object.type_name());
}

Value call_value(const Value& callee, const Arguments& arguments) {
  if (callee.is_callable()) return callee.callable().call(arguments);
  if (callee.is_undefined()) throw Problem(callee.why_undefined());
  throw Problem(fmt::format("'{}' object is not callable", callee.type_name()));
}

}  // namespace

Value item_or_undefined(const Value& object, const Value& key) {
  if ((object.is_dict() || object.is_namespace()) && !key.is_dict() && !key.is_list()) {
    if (const Value* found = object.dict().find(key)) return *found;
  }
  if (object.is_indexable() && key.is_integer()) {
    const Items& items = object.sequence().items;
    const auto size = static_cast<int64_t>(items.size());
    const int64_t place = key.integer() < 0 ? key.integer() + size : key.integer();
    if (place >= 0 && place < size) return items[static_cast<size_t>(place)];
  }
  if (object.is_string() && key.is_integer()) {
    const int64_t size = count_characters(object.string());
    int64_t place = key.integer() < 0 ? key.integer() + size : key.integer();
    if (place >= 0 && place < size) {
      size_t at = 0;
      for (; place > 0; --place) at += character_size(object.string()[at]);
      return object.string().substr(at, character_size(object.string()[at]));
    }
  }
  if (key.is_string()) {
    return Value::undefined(
        fmt::format("'{}' has no attribute '{}'", shown_type(object), key.string()));
  }
  if (key.is_undefined()) throw Problem(key.why_undefined());
  return Value::undefined(fmt::format("{} has no element {}", shown_type(object), to_repr(key)));
}

Value Interpreter::item(const Value& object, const Value& key) {
  if (object.is_undefined()) throw Problem(object.why_undefined());
  spend(object.is_string()                          ? object.string().size()
        : object.is_dict() || object.is_namespace() ? object.dict().entries.size()
                                                    : 0);
  Value found = item_or_undefined(object, key);
  if (found.is_undefined() && key.is_string()) {
    if (std::optional<Value> method = find_method(*this, object, key.string())) return *method;
  }
  return found;
}

Value Interpreter::attribute(const Value& object, const std::string& name) {
  if (object.is_undefined()) throw Problem(object.why_undefined());
  if (std::optional<Value> method = find_method(*this, object, name)) return *method;
  if (object.is_dict() || object.is_namespace()) spend(object.dict().entries.size());
  return item_or_undefined(object, name);
}

Value Interpreter::apply_filter(std::string_view name, const Value& input,
                                const Arguments& arguments) {
  const Filter filter = find_filter(name);
  if (filter == nullptr) {
    throw Problem(fmt::format("the filter '{}' is not supported", name),
                  Problem::Kind::unsupported);
  }
  spend(0);
  return filter(*this, input, arguments);
}

bool Interpreter::apply_test(std::string_view name, const Value& input,
                             const Arguments& arguments) {
  const Test test = find_test(name);
  if (test == nullptr) {
    throw Problem(fmt::format("the test '{}' is not supported", name), Problem::Kind::unsupported);
  }
  spend(0);
  return test(*this, input, arguments);
}

Value Interpreter::evaluate(const Expression& expression) {
  const Deeper deeper(*this);
  line_ = expression.line;
  spend(0);
  const auto part = [&](size_t i) { return evaluate(*expression.parts[i]); };
  switch (expression.op) {
    case Op::constant:
      return expression.value;
    case Op::name:
      return evaluate_name(expression);
    case Op::list:
    case Op::tuple:
    case Op::dict:
      return evaluate_rows(expression);
    case Op::attribute:
      return attribute(part(0), expression.name);
    case Op::item: {
      const Value object = part(0);
      return item(object, part(1));
    }
    case Op::slice:
      return evaluate_slice(expression);
    case Op::call:
      return evaluate_call(expression);
    case Op::filter: {
      const Value input = part(0);
      return apply_filter(expression.name, input, evaluate(expression.arguments));
    }
    case Op::test: {
      const Value input = part(0);
      return apply_test(expression.name, input, evaluate(expression.arguments));
    }
    case Op::negation:
      return !part(0).truth();
    case Op::conjunction: {
      Value left = part(0);
      return left.truth() ? part(1) : std::move(left);
    }
    case Op::disjunction: {
      Value left = part(0);
      return left.truth() ? std::move(left) : part(1);
    }
    case Op::choice:
      if (part(0).truth()) return part(1);
      if (expression.parts[2]) return part(2);
      return Value::undefined(
          "the inline if-expression evaluated to false and no else section was defined.");
    case Op::compare:
      return evaluate_compare(expression);
    case Op::concatenate:
      return evaluate_concatenation(expression);
    default:
      return evaluate_arithmetic(expression);
  }
}

Value Interpreter::evaluate_name(const Expression& expression) {
  if (const Value* found = scope_->find(expression.name)) return *found;
  if (const Value* found = variables_.find(std::string_view(expression.name))) return *found;
  if (std::optional<Value> function = find_function(*this, expression.name)) return *function;
  return Value::undefined(fmt::format("'{}' is undefined", expression.name));
}

Value Interpreter::evaluate_rows(const Expression& expression) {
  if (expression.op == Op::dict) {
    Dict dict;
    for (size_t i = 0; i < expression.parts.size(); i += 2) {
      Value key = evaluate(*expression.parts[i]);
      spend(dict.entries.size());
      dict.put(std::move(key), evaluate(*expression.parts[i + 1]));
    }
    return Value::dict(std::move(dict));
  }
  Items items;
  for (const ExpressionPtr& part : expression.parts) items.push_back(evaluate(*part));
  return expression.op == Op::list ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

Value Interpreter::evaluate_slice(const Expression& expression) {
  const auto bound = [&](size_t i) {
    return expression.parts[i] ? evaluate(*expression.parts[i]) : Value();
  };
  const Value object = bound(0);
  const Value first = bound(1);
  const Value last = bound(2);
  return slice(*this, object, first, last, bound(3));
}

bool Interpreter::compare(std::string_view op, const Value& left, const Value& right) {
  spend(0);
  if (op == "==") return equal(left, right);
  if (op == "!=") return !equal(left, right);
  if (op == "<") return less(left, right);
  if (op == ">") return less(right, left);
  if (op == "in" || op == "not in") {
    if (right.is_string()) spend(right.string().size());
    if (right.is_dict()) spend(right.dict().entries.size() * 8);
    if (right.is_sequence()) spend(right.sequence().items.size() * 8);
    return contains(right, left) == (op == "in");
  }
  // NaN is neither less nor greater.
  if (equal(left, right)) return true;
  return op == "<=" ? less(left, right) : less(right, left);
}

Value Interpreter::evaluate_compare(const Expression& expression) {
  Value left = evaluate(*expression.parts[0]);
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    Value right = evaluate(*expression.parts[i + 1]);
    if (!compare(expression.operators[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::evaluate_concatenation(const Expression& expression) {
  std::string text;
  for (const ExpressionPtr& part : expression.parts) {
    text += to_text(evaluate(*part));
    spend(text.size());
    if (text.size() > kMaxPrinted) throw Problem("the text grows too long", Problem::Kind::limit);
  }
  return text;
}

Value Interpreter::evaluate_arithmetic(const Expression& expression) {
  const Value left = evaluate(*expression.parts[0]);
  if (expression.op == Op::negative) return negative(left);
  if (expression.op == Op::positive) return negative(negative(left));
  const Value right = evaluate(*expression.parts[1]);
  switch (expression.op) {
    case Op::add:
      return add(*this, left, right);
    case Op::subtract:
      return subtract(left, right);
    case Op::multiply:
      return multiply(*this, left, right);
    case Op::divide:
      return divide(left, right);
    case Op::floor_divide:
      return floor_divide(left, right);
    case Op::modulo:
      return modulo(*this, left, right);
    default:
      return power(left, right);
  }
}

Value Interpreter::evaluate_call(const Expression& expression) {
  const Value callee = evaluate(*expression.parts[0]);
  const Arguments arguments = evaluate(expression.arguments);
  line_ = expression.line;
  return call_value(callee, arguments);
}

Arguments Interpreter::evaluate(const CallArguments& arguments) {
  Arguments result;
  for (const ExpressionPtr& value : arguments.values) result.values.push_back(evaluate(*value));
  if (arguments.spread) {
    for (Value& value : items_of(evaluate(*arguments.spread))) {
      spend(sizeof(Value));
      result.values.push_back(std::move(value));
    }
  }
  for (const auto& [name, value] : arguments.named) {
    result.named.emplace_back(name, evaluate(*value));
  }
  if (arguments.spread_named) {
    const Value more = evaluate(*arguments.spread_named);
    if (!more.is_dict()) throw Problem("argument after ** must be a mapping");
    for (const auto& [name, value] : more.dict().entries) {
      spend(sizeof(Value));
      result.named.emplace_back(to_text(name), value);
    }
  }
  return result;
}

Value Interpreter::evaluate_filters(const Expression& filters, const Value& input) {
  const Deeper deeper(*this);
  const Value before = filters.parts[0] ? evaluate_filters(*filters.parts[0], input) : input;
  return apply_filter(filters.name, before, evaluate(filters.arguments));
}

}  // namespace kinora::jinja
