#include "text/jinja/arithmetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "text/jinja/characters.h"
#include "text/jinja/printed.h"

namespace kinora::jinja {
namespace {

[[noreturn]] void refuse(std::string_view op, const Value& left, const Value& right) {
  for (const Value* value : {&left, &right}) {
    if (value->is_undefined()) throw Problem(value->why_undefined());
  }
  throw Problem(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", op,
                            left.type_name(), right.type_name()));
}

[[noreturn]] void overflow() {
  throw Problem("a number does not fit into 64 bits", Problem::Kind::limit);
}

bool numbers(const Value& left, const Value& right) {
  return left.is_number() && right.is_number();
}
bool integers(const Value& left, const Value& right) {
  return left.is_integer() && right.is_integer();
}

Value repeat(Runtime& runtime, const Value& what, int64_t times) {
  const auto count = static_cast<size_t>(std::max<int64_t>(times, 0));
  if (what.is_string()) {
    const std::string& text = what.string();
    if (count > kMaxPrinted || text.size() * count > kMaxPrinted) {
      throw Problem("the text grows too long", Problem::Kind::limit);
    }
    runtime.spend(text.size() * count);
    std::string out;
    for (size_t i = 0; i < count && !text.empty(); ++i) out += text;
    return out;
  }
  const Items& items = what.sequence().items;
  if (count > kMaxPrinted || items.size() * count > kMaxPrinted / sizeof(Value)) {
    throw Problem("a list grows too long", Problem::Kind::limit);
  }
  runtime.spend(items.size() * count * sizeof(Value));
  Items out;
  for (size_t i = 0; i < count; ++i) out.insert(out.end(), items.begin(), items.end());
  return Value::sequence(what.sequence().form, std::move(out));
}

bool is_row(const Value& value) {
  return value.is_string() ||
         (value.is_indexable() && value.sequence().form != Sequence::Form::range);
}

}  // namespace

Value add(Runtime& runtime, const Value& left, const Value& right) {
  if (integers(left, right)) {
    int64_t sum = 0;
    if (__builtin_add_overflow(left.integer(), right.integer(), &sum)) overflow();
    return sum;
  }
  if (numbers(left, right)) return left.real() + right.real();
  if (left.is_string() && right.is_string()) {
    runtime.spend(left.string().size() + right.string().size());
    if (left.string().size() + right.string().size() > kMaxPrinted) {
      throw Problem("the text grows too long", Problem::Kind::limit);
    }
    return left.string() + right.string();
  }
  if (is_row(left) && is_row(right) && !left.is_string() && !right.is_string() &&
      left.sequence().form == right.sequence().form) {
    Items items = left.sequence().items;
    const Items& more = right.sequence().items;
    runtime.spend((items.size() + more.size()) * sizeof(Value));
    items.insert(items.end(), more.begin(), more.end());
    return Value::sequence(left.sequence().form, std::move(items));
  }
  if (left.is_string() && !right.is_undefined()) {
    throw Problem(fmt::format("can only concatenate str (not \"{}\") to str", right.type_name()));
  }
  refuse("+", left, right);
}

Value subtract(const Value& left, const Value& right) {
  if (integers(left, right)) {
    int64_t difference = 0;
    if (__builtin_sub_overflow(left.integer(), right.integer(), &difference)) overflow();
    return difference;
  }
  if (numbers(left, right)) return left.real() - right.real();
  refuse("-", left, right);
}

Value multiply(Runtime& runtime, const Value& left, const Value& right) {
  if (integers(left, right)) {
    int64_t product = 0;
    if (__builtin_mul_overflow(left.integer(), right.integer(), &product)) overflow();
    return product;
  }
  if (numbers(left, right)) return left.real() * right.real();
  if (is_row(left) && right.is_integer()) return repeat(runtime, left, right.integer());
  if (left.is_integer() && is_row(right)) return repeat(runtime, right, left.integer());
  refuse("*", left, right);
}

Value divide(const Value& left, const Value& right) {
  if (!numbers(left, right)) refuse("/", left, right);
  if (right.real() == 0) throw Problem("division by zero");
  return left.real() / right.real();
}

Value floor_divide(const Value& left, const Value& right) {
  if (!numbers(left, right)) refuse("//", left, right);
  if (right.real() == 0) throw Problem("integer division or modulo by zero");
  if (!integers(left, right)) return std::floor(left.real() / right.real());
  const int64_t a = left.integer();
  const int64_t b = right.integer();
  if (a == std::numeric_limits<int64_t>::min() && b == -1) overflow();
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

Value modulo(Runtime& runtime, const Value& left, const Value& right) {
  if (left.is_string()) {
    std::string text = percent_format(left.string(), right);
    runtime.spend(text.size());
    return text;
  }
  if (!numbers(left, right)) refuse("%", left, right);
  if (right.real() == 0) throw Problem("integer division or modulo by zero");
  if (integers(left, right)) {
    const int64_t b = right.integer();
    if (b == -1) return 0;
    const int64_t rest = left.integer() % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  }
  const double rest = std::fmod(left.real(), right.real());
  return rest != 0 && (rest < 0) != (right.real() < 0) ? rest + right.real() : rest;
}

Value power(const Value& left, const Value& right) {
  if (!numbers(left, right)) refuse("** or pow()", left, right);
  if (!integers(left, right) || right.integer() < 0) return std::pow(left.real(), right.real());
  int64_t result = 1;
  if (right.integer() > 64 && std::abs(left.real()) > 1) overflow();
  for (int64_t i = 0; i < std::min<int64_t>(right.integer(), 64 + (right.integer() & 1)); ++i) {
    if (__builtin_mul_overflow(result, left.integer(), &result)) overflow();
  }
  return result;
}

Value negative(const Value& value) {
  if (value.is_integer()) return subtract(0, value);
  if (value.is_real()) return -value.real();
  if (value.is_undefined()) throw Problem(value.why_undefined());
  throw Problem(fmt::format("bad operand type for unary -: '{}'", value.type_name()));
}

Value slice(Runtime& runtime, const Value& object, const Value& first, const Value& last,
            const Value& step) {
  if (object.is_undefined()) throw Problem(object.why_undefined());
  if (!object.is_string() && !object.is_indexable()) {
    return Value::undefined(fmt::format("{} object has no such element", object.type_name()));
  }
  for (const Value* bound : {&first, &last, &step}) {
    if (!bound->is_none() && !bound->is_integer()) {
      if (bound->is_undefined()) throw Problem(bound->why_undefined());
      return Value::undefined(fmt::format("{} object has no such element", object.type_name()));
    }
  }
  const int64_t stride = step.is_none() ? 1 : step.integer();
  if (stride == 0) throw Problem("slice step cannot be zero");
  const Items items = items_of(object);
  runtime.spend(items.size() * sizeof(Value));
  const auto size = static_cast<int64_t>(items.size());
  const auto bound = [&](const Value& value, int64_t otherwise) {
    if (value.is_none()) return otherwise;
    const int64_t place = value.integer() < 0 ? value.integer() + size : value.integer();
    return stride > 0 ? std::clamp<int64_t>(place, 0, size)
                      : std::clamp<int64_t>(place, -1, size - 1);
  };
  const int64_t begin = bound(first, stride > 0 ? 0 : size - 1);
  const int64_t end = bound(last, stride > 0 ? size : -1);
  Items kept;
  const int64_t bounded = std::clamp<int64_t>(stride, -size - 1, size + 1);
  for (int64_t i = begin; bounded > 0 ? i < end : i > end; i += bounded) {
    kept.push_back(items[static_cast<size_t>(i)]);
  }
  if (!object.is_string()) return Value::sequence(object.sequence().form, std::move(kept));
  std::string text;
  for (const Value& one : kept) text += one.string();
  return text;
}

std::optional<int64_t> parse_integer(std::string_view text, int base) {
  text = strip(text);
  if (text.starts_with('+')) text.remove_prefix(1);
  if (base < 2 || base > 36) return std::nullopt;
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool between = i > 0 && i + 1 < text.size() && text[i - 1] != '_';
    if (text[i] == '_' && between) continue;
    digits += text[i];
  }
  int64_t value = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (read.ec != std::errc() || read.ptr != digits.data() + digits.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_real(std::string_view text) {
  const std::string copy(strip(text));
  if (copy.empty() || copy.find_first_of("xX(") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(copy.c_str(), &end);
  if (end != copy.c_str() + copy.size()) return std::nullopt;
  return value;
}

}  // namespace kinora::jinja
