// Filters of sequences and mappings.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "text/jinja/arithmetic.h"
#include "text/jinja/characters.h"
#include "text/jinja/filters_table.h"
#include "text/jinja/printed.h"

namespace kinora::jinja {
namespace {

Items spend_items(Runtime& runtime, const Value& input) {
  Items items = items_of(input);
  runtime.spend(items.size() * sizeof(Value));
  return items;
}

Value generator(Items items) {
  return Value::sequence(Sequence::Form::iterator, std::move(items), "generator");
}

// "a.b.0" looked up step by step.
Value attribute_of(Runtime& runtime, Value object, const Value& path) {
  if (path.is_none()) return object;
  if (path.is_integer()) return runtime.item(object, path);
  std::string_view rest = path.string();
  for (;;) {
    const size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    int64_t number = 0;
    const auto read = std::from_chars(part.data(), part.data() + part.size(), number);
    const bool whole =
        read.ec == std::errc() && read.ptr == part.data() + part.size() && !part.starts_with('-');
    object = runtime.item(object, whole ? Value(number) : Value(part));
    if (dot == std::string_view::npos) return object;
    rest.remove_prefix(dot + 1);
  }
}

Value checked_path(const std::optional<Value>& path) {
  if (!path || path->is_none()) return {};
  if (!path->is_integer() && !path->is_string()) throw Problem("an attribute is named by a text");
  return *path;
}

Value folded(const Value& value, bool case_sensitive) {
  return value.is_string() && !case_sensitive ? Value(lower(value.string())) : value;
}

Value filter_join(Runtime& runtime, const Value& input, const Arguments& arguments) {
  arguments.expect("join", 2, {"d", "attribute"});
  const std::string between = to_text(arguments.take(0, "d").value_or(""));
  const Value path = checked_path(arguments.take(1, "attribute"));
  std::string out;
  bool first = true;
  for (const Value& item : spend_items(runtime, input)) {
    const std::string text = to_text(attribute_of(runtime, item, path));
    runtime.spend(between.size() + text.size());
    if (!first) out += between;
    first = false;
    out += text;
  }
  return out;
}

Value filter_list(Runtime& runtime, const Value& input, const Arguments&) {
  return Value::list(spend_items(runtime, input));
}

Value filter_first(Runtime& runtime, const Value& input, const Arguments&) {
  const Items items = spend_items(runtime, input);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Value filter_last(Runtime& runtime, const Value& input, const Arguments&) {
  if (input.is_iterator() || input.is_undefined()) {
    throw Problem(fmt::format("'{}' object is not reversible", input.type_name()));
  }
  const Items items = spend_items(runtime, input);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value filter_reverse(Runtime& runtime, const Value& input, const Arguments&) {
  Items items = spend_items(runtime, input);
  std::ranges::reverse(items);
  if (!input.is_string()) return generator(std::move(items));
  std::string out;
  for (const Value& item : items) out += item.string();
  return out;
}

Value filter_items(Runtime& runtime, const Value& input, const Arguments&) {
  if (input.is_undefined()) return generator({});
  if (!input.is_dict()) throw Problem("Can only get item pairs from a mapping.");
  Items items;
  for (const auto& [key, value] : input.dict().entries) items.push_back(Value::tuple({key, value}));
  runtime.spend(items.size() * sizeof(Value));
  return generator(std::move(items));
}

// Sorts by key; equal ones stay in order.
Items sorted(Runtime& runtime, Items items, const std::vector<Value>& keys, bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    runtime.spend(1);
    return reverse ? less(keys[b], keys[a]) : less(keys[a], keys[b]);
  });
  Items result;
  for (const size_t i : order) result.push_back(std::move(items[i]));
  return result;
}

Value filter_sort(Runtime& runtime, const Value& input, const Arguments& arguments) {
  arguments.expect("sort", 3, {"reverse", "case_sensitive", "attribute"});
  const bool reverse = arguments.take(0, "reverse").value_or(false).truth();
  const bool sensitive = arguments.take(1, "case_sensitive").value_or(false).truth();
  const Value path = checked_path(arguments.take(2, "attribute"));
  if (path.is_string() && path.string().find(',') != std::string::npos) {
    throw Problem("sort by several attributes is not supported", Problem::Kind::unsupported);
  }
  Items items = spend_items(runtime, input);
  std::vector<Value> keys;
  for (const Value& item : items) {
    keys.push_back(folded(attribute_of(runtime, item, path), sensitive));
  }
  return Value::list(sorted(runtime, std::move(items), keys, reverse));
}

Value filter_dictsort(Runtime& runtime, const Value& input, const Arguments& arguments) {
  arguments.expect("dictsort", 3, {"case_sensitive", "by", "reverse"});
  const bool sensitive = arguments.take(0, "case_sensitive").value_or(false).truth();
  const std::string by = to_text(arguments.take(1, "by").value_or("key"));
  const bool reverse = arguments.take(2, "reverse").value_or(false).truth();
  if (by != "key" && by != "value") throw Problem("You can only sort by either 'key' or 'value'");
  if (!input.is_dict()) {
    if (input.is_undefined()) throw Problem(input.why_undefined());
    throw Problem(fmt::format("'{}' object has no attribute 'items'", input.type_name()));
  }
  Items items;
  std::vector<Value> keys;
  for (const auto& [key, value] : input.dict().entries) {
    items.push_back(Value::tuple({key, value}));
    keys.push_back(folded(by == "key" ? key : value, sensitive));
  }
  runtime.spend(items.size() * sizeof(Value));
  return Value::list(sorted(runtime, std::move(items), keys, reverse));
}

Value filter_unique(Runtime& runtime, const Value& input, const Arguments& arguments) {
  arguments.expect("unique", 2, {"case_sensitive", "attribute"});
  const bool sensitive = arguments.take(0, "case_sensitive").value_or(false).truth();
  const Value path = checked_path(arguments.take(1, "attribute"));
  Items kept;
  std::vector<Value> seen;
  for (Value& item : spend_items(runtime, input)) {
    Value key = folded(attribute_of(runtime, item, path), sensitive);
    runtime.spend(seen.size() * 64);
    if (std::ranges::any_of(seen, [&](const Value& one) { return equal(one, key); })) continue;
    seen.push_back(std::move(key));
    kept.push_back(std::move(item));
  }
  return generator(std::move(kept));
}

template <bool largest>
Value filter_extreme(Runtime& runtime, const Value& input, const Arguments& arguments) {
  arguments.expect(largest ? "max" : "min", 2, {"case_sensitive", "attribute"});
  const bool sensitive = arguments.take(0, "case_sensitive").value_or(false).truth();
  const Value path = checked_path(arguments.take(1, "attribute"));
  const Items items = spend_items(runtime, input);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  size_t best = 0;
  Value best_key = folded(attribute_of(runtime, items[0], path), sensitive);
  for (size_t i = 1; i < items.size(); ++i) {
    Value key = folded(attribute_of(runtime, items[i], path), sensitive);
    if (largest ? less(best_key, key) : less(key, best_key)) {
      best = i;
      best_key = std::move(key);
    }
  }
  return items[best];
}

Value filter_sum(Runtime& runtime, const Value& input, const Arguments& arguments) {
  arguments.expect("sum", 2, {"attribute", "start"});
  const Value path = checked_path(arguments.take(0, "attribute"));
  Value total = arguments.take(1, "start").value_or(0);
  for (const Value& item : spend_items(runtime, input)) {
    total = add(runtime, total, attribute_of(runtime, item, path));
  }
  return total;
}

Arguments without_first(const Arguments& arguments, size_t count) {
  Arguments rest = arguments;
  const auto end =
      rest.values.begin() + static_cast<std::ptrdiff_t>(std::min(count, rest.values.size()));
  rest.values.erase(rest.values.begin(), end);
  return rest;
}

Value filter_map(Runtime& runtime, const Value& input, const Arguments& arguments) {
  // Like the selections, jinja2's map does not look into what is false.
  Items results;
  const Items items = input.truth() ? spend_items(runtime, input) : Items();
  if (arguments.values.empty()) {
    arguments.expect("map", 0, {"attribute", "default"});
    const Value path = checked_path(arguments.take(1, "attribute"));
    if (path.is_none()) throw Problem("map requires a filter argument");
    const std::optional<Value> otherwise = arguments.take(1, "default");
    for (const Value& item : items) {
      Value found = attribute_of(runtime, item, path);
      results.push_back(found.is_undefined() && otherwise ? *otherwise : std::move(found));
    }
  } else {
    const std::string name = to_text(arguments.values[0]);
    const Arguments rest = without_first(arguments, 1);
    for (const Value& item : items) results.push_back(runtime.apply_filter(name, item, rest));
  }
  return generator(std::move(results));
}

template <bool keep, bool by_attribute>
Value filter_select(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const size_t own = by_attribute ? 1 : 0;
  const Value path = by_attribute ? checked_path(arguments.take(0, "")) : Value();
  if (by_attribute && path.is_none()) throw Problem("Missing parameter for attribute name");
  const std::optional<Value> test = arguments.take(own, "");
  const Arguments rest = without_first(arguments, own + 1);
  Items kept;
  if (!input.truth()) return generator({});
  for (Value& item : spend_items(runtime, input)) {
    const Value looked_at = attribute_of(runtime, item, path);
    const bool passes =
        test ? runtime.apply_test(to_text(*test), looked_at, rest) : looked_at.truth();
    if (passes == keep) kept.push_back(std::move(item));
  }
  return generator(std::move(kept));
}

Value filter_attr(Runtime& runtime, const Value& input, const Arguments& arguments) {
  arguments.expect("attr", 1, {"name"});
  const std::string name = to_text(arguments.take(0, "name").value_or(""));
  // By attribute alone: a mapping's members are none.
  if (input.is_namespace()) return item_or_undefined(input, name);
  if (std::optional<Value> method = find_method(runtime, input, name)) return *method;
  return Value::undefined(
      fmt::format("'{} object' has no attribute '{}'", input.type_name(), name));
}

constexpr std::array filters{
    NamedFilter{"attr", filter_attr},
    NamedFilter{"dictsort", filter_dictsort},
    NamedFilter{"first", filter_first},
    NamedFilter{"items", filter_items},
    NamedFilter{"join", filter_join},
    NamedFilter{"last", filter_last},
    NamedFilter{"list", filter_list},
    NamedFilter{"map", filter_map},
    NamedFilter{"max", filter_extreme<true>},
    NamedFilter{"min", filter_extreme<false>},
    NamedFilter{"reject", filter_select<false, false>},
    NamedFilter{"rejectattr", filter_select<false, true>},
    NamedFilter{"reverse", filter_reverse},
    NamedFilter{"select", filter_select<true, false>},
    NamedFilter{"selectattr", filter_select<true, true>},
    NamedFilter{"sort", filter_sort},
    NamedFilter{"sum", filter_sum},
    NamedFilter{"unique", filter_unique},
};

}  // namespace

std::span<const NamedFilter> sequence_filters() { return filters; }

}  // namespace kinora::jinja
