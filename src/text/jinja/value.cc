#include "text/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/characters.h"

namespace kinora::jinja {
namespace {

int checked_depth(int inside) {
  if (inside >= kMaxValueDepth) throw Problem("a value nests too deeply", Problem::Kind::limit);
  return inside + 1;
}

void check_depth(int depth) {
  if (depth > kMaxValueDepth) throw Problem("a value nests too deeply", Problem::Kind::limit);
}

}  // namespace

const Value* Dict::find(const Value& key) const {
  for (const auto& [name, value] : entries) {
    if (equal(name, key)) return &value;
  }
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : entries) {
    if (name.is_string() && name.string() == key) return &value;
  }
  return nullptr;
}

void Dict::put(Value key, Value value) {
  if (key.is_dict() || key.is_list()) {
    throw Problem(fmt::format("unhashable type: '{}'", key.type_name()));
  }
  if (!is_namespace) depth = std::max(depth, checked_depth(std::max(key.depth(), value.depth())));
  for (auto& [name, old] : entries) {
    if (equal(name, key)) {
      old = std::move(value);
      return;
    }
  }
  entries.emplace_back(std::move(key), std::move(value));
}

Value Value::undefined(std::string why) {
  return Undefined{std::make_shared<const std::string>(std::move(why))};
}

Value Value::sequence(Sequence::Form form, Items items, std::string_view shown_as) {
  int inside = 0;
  for (const Value& item : items) inside = std::max(inside, item.depth());
  Value value;
  value.data_ = std::make_shared<const Sequence>(
      Sequence{form, std::move(items), shown_as, checked_depth(inside)});
  return value;
}

Value Value::dict(Dict dict) { return std::make_shared<Dict>(std::move(dict)); }

bool Value::is_indexable() const {
  return is_sequence() && sequence().form <= Sequence::Form::range;
}

bool Value::truth() const {
  if (is_boolean()) return boolean();
  if (is_integer()) return integer() != 0;
  if (is_real()) return real() != 0;
  if (is_string()) return !string().empty();
  if (is_iterator()) return true;
  if (is_sequence()) return !sequence().items.empty();
  if (is_dict()) return !dict().entries.empty();
  return is_namespace() || is_callable();
}

int Value::depth() const {
  if (is_sequence()) return sequence().depth;
  // The interpreter owns every namespace; taking values apart ends there.
  if (is_dict()) return dict().depth;
  return 0;
}

std::string_view Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is_boolean()) return "bool";
  if (is_integer()) return "int";
  if (is_real()) return "float";
  if (is_string()) return "str";
  if (is_dict()) return "dict";
  if (is_namespace()) return "Namespace";
  if (is_callable()) return callable().type_name();
  switch (sequence().form) {
    case Sequence::Form::list:
      return "list";
    case Sequence::Form::tuple:
      return "tuple";
    case Sequence::Form::range:
      return "range";
    case Sequence::Form::view:
      return sequence().shown_as;
    case Sequence::Form::iterator:
      return "generator";
  }
  return "object";
}

bool Value::same_as(const Value& other) const {
  if (data_.index() != other.data_.index()) return false;
  if (is_none()) return true;
  if (is_undefined()) return false;
  if (is_boolean() || is_integer()) return integer() == other.integer();
  if (is_real()) return real() == other.real();
  if (is_string()) return string() == other.string();  // equal texts are mostly one object there
  if (is_sequence()) return &sequence() == &other.sequence();
  if (is_callable()) return &callable() == &other.callable();
  return &dict() == &other.dict();
}

std::optional<Value> Arguments::take(size_t place, std::string_view name) const {
  if (place < values.size()) return values[place];
  for (const auto& [key, value] : named) {
    if (key == name) return value;
  }
  return std::nullopt;
}

void Arguments::expect(std::string_view function, size_t most,
                       std::initializer_list<std::string_view> names) const {
  if (values.size() > most) {
    throw Problem(
        fmt::format("{}() takes at most {} arguments, {} given", function, most, values.size()));
  }
  for (const auto& [key, value] : named) {
    if (std::ranges::find(names, key) == names.end()) {
      throw Problem(fmt::format("{}() got an unexpected keyword argument '{}'", function, key));
    }
  }
}

bool equal(const Value& left, const Value& right, int depth) {
  check_depth(depth);
  if (left.is_number() && right.is_number()) {
    if (left.is_integer() && right.is_integer()) return left.integer() == right.integer();
    return left.real() == right.real();
  }
  if (left.is_string() && right.is_string()) return left.string() == right.string();
  if (left.is_none() || right.is_none()) return left.is_none() && right.is_none();
  if (left.is_undefined() || right.is_undefined()) {
    return left.is_undefined() && right.is_undefined();
  }
  if (left.is_dict() && right.is_dict()) {
    const Dict& a = left.dict();
    const Dict& b = right.dict();
    return a.entries.size() == b.entries.size() &&
           std::ranges::all_of(a.entries, [&](const auto& entry) {
             const Value* found = b.find(entry.first);
             return found != nullptr && equal(entry.second, *found, depth + 1);
           });
  }
  if (left.is_indexable() && right.is_indexable()) {
    const Sequence& a = left.sequence();
    const Sequence& b = right.sequence();
    return a.form == b.form &&
           std::ranges::equal(a.items, b.items, [&](const Value& x, const Value& y) {
             return equal(x, y, depth + 1);
           });
  }
  return left.same_as(right);
}

bool less(const Value& left, const Value& right, int depth) {
  check_depth(depth);
  if (left.is_number() && right.is_number()) {
    if (left.is_integer() && right.is_integer()) return left.integer() < right.integer();
    return left.real() < right.real();
  }
  // UTF-8 sorts as its characters do.
  if (left.is_string() && right.is_string()) return left.string() < right.string();
  if (left.is_indexable() && right.is_indexable() &&
      left.sequence().form == right.sequence().form &&
      left.sequence().form != Sequence::Form::range) {
    const Items& a = left.sequence().items;
    const Items& b = right.sequence().items;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (!equal(a[i], b[i], depth + 1)) return less(a[i], b[i], depth + 1);
    }
    return a.size() < b.size();
  }
  for (const Value* value : {&left, &right}) {
    if (value->is_undefined()) throw Problem(value->why_undefined());
  }
  throw Problem(fmt::format("'<' not supported between instances of '{}' and '{}'",
                            left.type_name(), right.type_name()));
}

bool contains(const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string()) {
      if (item.is_undefined()) throw Problem(item.why_undefined());
      throw Problem(
          fmt::format("'in <string>' requires string as left operand, not {}", item.type_name()));
    }
    return container.string().find(item.string()) != std::string::npos;
  }
  if (container.is_dict()) return container.dict().find(item) != nullptr;
  return std::ranges::any_of(items_of(container),
                             [&](const Value& one) { return equal(one, item); });
}

int64_t length_of(const Value& value) {
  if (value.is_string()) return count_characters(value.string());
  if (value.is_undefined()) return 0;
  if (value.is_dict()) return static_cast<int64_t>(value.dict().entries.size());
  if (value.is_sequence() && !value.is_iterator()) {
    return static_cast<int64_t>(value.sequence().items.size());
  }
  throw Problem(fmt::format("object of type '{}' has no len()", value.type_name()));
}

Items items_of(const Value& value) {
  if (value.is_undefined()) return {};
  if (value.is_string()) {
    Items items;
    for_each_character(value.string(), [&](std::string_view one) { items.emplace_back(one); });
    return items;
  }
  if (value.is_dict()) {
    Items items;
    for (const auto& [key, ignored] : value.dict().entries) items.push_back(key);
    return items;
  }
  if (value.is_sequence()) {
    const Sequence& sequence = value.sequence();
    if (sequence.spent) return {};
    if (value.is_iterator()) sequence.spent = true;
    return sequence.items;
  }
  throw Problem(fmt::format("'{}' object is not iterable", value.type_name()));
}

}  // namespace kinora::jinja
