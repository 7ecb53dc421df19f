// Global functions: jinja2's, and those that transformers gives to chat templates.
#include <fmt/format.h>

#include <array>

#include "text/jinja/printed.h"
#include "text/jinja/runtime.h"

namespace kinora::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // as jinja2's sandbox has it

Value make_range(Runtime& runtime, const Arguments& arguments) {
  arguments.expect("range", 3);
  std::array<int64_t, 3> bounds{0, 0, 1};
  if (arguments.values.empty()) throw Problem("range() lacks an argument");
  const bool one = arguments.values.size() == 1;
  for (size_t i = 0; i < arguments.values.size(); ++i) {
    const Value& value = arguments.values[i];
    if (value.is_undefined()) throw Problem(value.why_undefined());
    if (!value.is_integer()) {
      throw Problem(
          fmt::format("'{}' object cannot be interpreted as an integer", value.type_name()));
    }
    bounds[one ? 1 : i] = value.integer();
  }
  const auto [begin, end, step] = bounds;
  if (step == 0) throw Problem("range() arg 3 must not be zero");
  Items items;
  int64_t at = begin;
  while (step > 0 ? at < end : at > end) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange) {
      throw Problem(
          fmt::format("Range too big. The sandbox blocks ranges larger than {}.", kMaxRange),
          Problem::Kind::limit);
    }
    items.emplace_back(at);
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  runtime.spend(items.size() * sizeof(Value));
  return Value::sequence(Sequence::Form::range, std::move(items), "range");
}

// What dict(…) and namespace(…) make of their arguments.
Dict members(Runtime& runtime, std::string_view function, const Arguments& arguments) {
  Dict result;
  if (arguments.values.size() > 1) throw Problem(fmt::format("{}() takes one argument", function));
  if (!arguments.values.empty()) {
    const Value& from = arguments.values[0];
    if (from.is_dict()) {
      result.entries = from.dict().entries;
      result.depth = from.dict().depth;
      runtime.spend(result.entries.size() * sizeof(Value));
    } else {
      for (const Value& pair : items_of(from)) {
        const Items two = items_of(pair);
        if (two.size() != 2) throw Problem(fmt::format("{}() needs pairs", function));
        runtime.spend(result.entries.size() + 1);
        result.put(two[0], two[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) result.put(name, value);
  return result;
}

Value strftime_now(Runtime& runtime, const Arguments& arguments) {
  arguments.expect("strftime_now", 1, {"format"});
  const std::optional<Value> format = arguments.take(0, "format");
  if (!format || !format->is_string()) throw Problem("strftime_now() needs a format");
  if (format->string().empty()) return "";
  const std::tm now = runtime.now();
  std::array<char, 4096> buffer;
  // The space tells an empty result from one that does not fit.
  const size_t size =
      std::strftime(buffer.data(), buffer.size(), (format->string() + " ").c_str(), &now);
  if (size == 0) throw Problem("the date of strftime_now() is too long", Problem::Kind::limit);
  return std::string(buffer.data(), size - 1);
}

}  // namespace

std::optional<Value> find_function(Runtime& runtime, std::string_view name) {
  if (name == "range") {
    return make_function([&runtime](const Arguments& a) { return make_range(runtime, a); });
  }
  if (name == "dict") {
    return make_function(
        [&runtime](const Arguments& a) { return Value::dict(members(runtime, "dict", a)); });
  }
  if (name == "namespace") {
    return make_function([&runtime](const Arguments& a) {
      return runtime.make_namespace(members(runtime, "namespace", a));
    });
  }
  if (name == "raise_exception") {
    return make_function([](const Arguments& a) -> Value {
      a.expect("raise_exception", 1, {"message"});
      throw Problem(to_text(a.take(0, "message").value_or("")), Problem::Kind::raised);
    });
  }
  if (name == "strftime_now") {
    return make_function([&runtime](const Arguments& a) { return strftime_now(runtime, a); });
  }
  if (name == "cycler" || name == "joiner" || name == "lipsum") {
    throw Problem(fmt::format("the function {}() is not supported", name),
                  Problem::Kind::unsupported);
  }
  return std::nullopt;
}

}  // namespace kinora::jinja
