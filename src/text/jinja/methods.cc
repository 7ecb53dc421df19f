// Methods of values, bound to them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "text/jinja/runtime.h"
#include "text/jinja/text_methods.h"

namespace kinora::jinja {
namespace {

using Names = std::span<const std::string_view>;

// What a Python object has besides what is written here. A template that calls one is told so,
// while its name alone (`is defined`) means what it means there.
constexpr std::array<std::string_view, 15> other_text_methods{
    "casefold",  "center",    "encode",   "expandtabs",   "format_map",
    "isascii",   "isdecimal", "istitle",  "isidentifier", "isprintable",
    "maketrans", "rindex",    "swapcase", "translate",    "fromhex"};
constexpr std::array<std::string_view, 8> list_changes{"append", "clear",  "extend",  "insert",
                                                       "pop",    "remove", "reverse", "sort"};
constexpr std::array<std::string_view, 5> dict_changes{"clear", "pop", "popitem", "setdefault",
                                                       "update"};

bool has(Names names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

Value forbidden(const Value& object, std::string_view name) {
  return Value::undefined(
      fmt::format("access to attribute '{}' of '{}' object is unsafe", name, object.type_name()));
}

std::optional<Value> dict_method(Runtime& runtime, const Value& object, std::string_view name) {
  if (has(dict_changes, name)) return forbidden(object, name);
  const std::shared_ptr<Dict> dict = object.dict_pointer();
  if (name == "get") {
    return make_function([dict, &runtime](const Arguments& arguments) -> Value {
      arguments.expect("get", 2);
      if (arguments.values.empty()) throw Problem("get() lacks a key");
      runtime.spend(dict->entries.size());
      const Value* found = dict->find(arguments.values[0]);
      if (found != nullptr) return *found;
      return arguments.values.size() > 1 ? arguments.values[1] : Value();
    });
  }
  const bool keys = name == "keys";
  const bool values = name == "values";
  if (keys || values || name == "items") {
    return make_function([dict, keys, values, &runtime](const Arguments& arguments) -> Value {
      arguments.expect("items", 0);
      Items items;
      for (const auto& [key, value] : dict->entries) {
        items.push_back(keys ? key : values ? value : Value::tuple({key, value}));
      }
      runtime.spend(items.size() * sizeof(Value));
      return Value::sequence(Sequence::Form::view, std::move(items),
                             keys     ? "dict_keys"
                             : values ? "dict_values"
                                      : "dict_items");
    });
  }
  if (name == "copy") {
    return make_function([object](const Arguments&) { return Value::dict(object.dict()); });
  }
  return std::nullopt;
}

std::optional<Value> list_method(Runtime& runtime, const Value& object, std::string_view name) {
  const Sequence::Form form = object.sequence().form;
  if (form == Sequence::Form::list && has(list_changes, name)) return forbidden(object, name);
  if (form == Sequence::Form::list && name == "copy") {
    return make_function([object](const Arguments&) { return object; });
  }
  if (!object.is_indexable() || (name != "index" && name != "count")) return std::nullopt;
  return make_function([object, &runtime, index = name == "index"](const Arguments& arguments) {
    arguments.expect("index", 1);
    if (arguments.values.empty()) throw Problem("index() lacks an argument");
    const Items& items = object.sequence().items;
    runtime.spend(items.size() * 8);
    const auto same = [&](const Value& one) { return equal(one, arguments.values[0]); };
    if (!index) return Value(static_cast<int64_t>(std::ranges::count_if(items, same)));
    const auto found = std::ranges::find_if(items, same);
    if (found == items.end()) throw Problem("the value is not in list");
    return Value(static_cast<int64_t>(found - items.begin()));
  });
}

}  // namespace

std::optional<Value> find_method(Runtime& runtime, const Value& object, std::string_view name) {
  if (object.is_string()) {
    if (const TextMethod method = find_text_method(name)) {
      return make_function([&runtime, object, method](const Arguments& arguments) {
        return method(runtime, object.string(), arguments);
      });
    }
    if (has(other_text_methods, name)) {
      return make_function([name = std::string(name)](const Arguments&) -> Value {
        throw Problem(fmt::format("the method {}() of a text is not supported", name),
                      Problem::Kind::unsupported);
      });
    }
    return std::nullopt;
  }
  if (object.is_dict()) return dict_method(runtime, object, name);
  if (object.is_sequence()) return list_method(runtime, object, name);
  if (object.is_callable()) return object.callable().attribute(name);
  return std::nullopt;
}

}  // namespace kinora::jinja
