// The values that a chat template works with, with the meaning that Python gives them: what is
// true, equal or smaller, and how deep a value nests. Only a namespace can be changed after it was
// made; everything else is shared and constant.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace kinora::jinja {

class Value;
class Callable;
using Items = std::vector<Value>;

// What a name without a value is: it prints as nothing and fails when it is used.
struct Undefined {
  std::shared_ptr<const std::string> why;  // "'x' is undefined"
};
struct None {};

struct Sequence {
  enum class Form { list, tuple, range, view, iterator };
  Form form = Form::list;
  Items items;
  std::string_view shown_as = {};  // how a view or an iterator prints
  int depth = 1;
  // An iterator gives its items once.
  mutable bool spent = false;
};

// Keeps the order in which keys were put in; found by looking along, for templates have few keys.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  bool is_namespace = false;
  int depth = 1;

  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void put(Value key, Value value);
};

class Value {
 public:
  using Text = std::shared_ptr<const std::string>;

  Value() : data_(None{}) {}
  Value(None) : data_(None{}) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  Value(bool value) : data_(value) {}
  Value(int value) : data_(int64_t{value}) {}
  Value(int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(std::string text) : data_(std::make_shared<const std::string>(std::move(text))) {}
  Value(std::string_view text) : Value(std::string(text)) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(std::shared_ptr<Callable> callable) : data_(std::move(callable)) {}
  Value(std::shared_ptr<Dict> dict) : data_(std::move(dict)) {}

  static Value undefined(std::string why);
  static Value list(Items items) { return sequence(Sequence::Form::list, std::move(items)); }
  static Value tuple(Items items) { return sequence(Sequence::Form::tuple, std::move(items)); }
  // Throws a Problem when the items nest too deeply.
  static Value sequence(Sequence::Form form, Items items, std::string_view shown_as = {});
  static Value dict(Dict dict);

  bool is_undefined() const { return holds<Undefined>(); }
  bool is_none() const { return holds<None>(); }
  bool is_boolean() const { return holds<bool>(); }
  // Python's bool is an int, too.
  bool is_integer() const { return holds<int64_t>() || is_boolean(); }
  bool is_real() const { return holds<double>(); }
  bool is_number() const { return is_integer() || is_real(); }
  bool is_string() const { return holds<Text>(); }
  bool is_sequence() const { return holds<std::shared_ptr<const Sequence>>(); }
  bool is_list() const { return has_form(Sequence::Form::list); }
  bool is_iterator() const { return has_form(Sequence::Form::iterator); }
  // A list, a tuple or a range: what an index may be applied to.
  bool is_indexable() const;
  bool is_dict() const { return holds<std::shared_ptr<Dict>>() && !dict().is_namespace; }
  bool is_namespace() const { return holds<std::shared_ptr<Dict>>() && dict().is_namespace; }
  bool is_callable() const { return holds<std::shared_ptr<Callable>>(); }

  bool boolean() const { return std::get<bool>(data_); }
  int64_t integer() const { return is_boolean() ? boolean() : std::get<int64_t>(data_); }
  double real() const {
    return is_real() ? std::get<double>(data_) : static_cast<double>(integer());
  }
  const std::string& string() const { return *std::get<Text>(data_); }
  const Sequence& sequence() const { return *std::get<std::shared_ptr<const Sequence>>(data_); }
  Dict& dict() const { return *std::get<std::shared_ptr<Dict>>(data_); }
  const std::shared_ptr<Dict>& dict_pointer() const {
    return std::get<std::shared_ptr<Dict>>(data_);
  }
  Callable& callable() const { return *std::get<std::shared_ptr<Callable>>(data_); }
  std::string why_undefined() const { return *std::get<Undefined>(data_).why; }

  bool truth() const;
  int depth() const;
  // As Python's error messages name it: "str", "dict".
  std::string_view type_name() const;
  // `is`: the same object, or the same small constant.
  bool same_as(const Value& other) const;

 private:
  template <typename T>
  bool holds() const {
    return std::holds_alternative<T>(data_);
  }
  bool has_form(Sequence::Form form) const { return is_sequence() && sequence().form == form; }

  std::variant<None, Undefined, bool, int64_t, double, Text, std::shared_ptr<const Sequence>,
               std::shared_ptr<Dict>, std::shared_ptr<Callable>>
      data_;
};

// What a call brings.
struct Arguments {
  Items values;
  std::vector<std::pair<std::string, Value>> named;

  // Removes and gives the argument number `place`, or the one named so; absent when neither is
  // there.
  std::optional<Value> take(size_t place, std::string_view name) const;
  // Throws a Problem when there are more than `most` or one is named other than these.
  void expect(std::string_view function, size_t most,
              std::initializer_list<std::string_view> names = {}) const;
};

// Macros, functions, bound methods, and the objects `loop`, cycler and joiner.
class Callable {
 public:
  virtual ~Callable() = default;
  virtual Value call(const Arguments& arguments) = 0;
  virtual std::optional<Value> attribute(std::string_view) const { return std::nullopt; }
  virtual std::string_view type_name() const { return "function"; }
};

// Something that cannot be done at this place of the template. The interpreter adds the line.
class Problem {
 public:
  // What the template asks for is wrong, is not supported, was refused by the template itself, or
  // takes more than is allowed.
  enum class Kind { wrong, unsupported, raised, limit };
  explicit Problem(std::string what, Kind why = Kind::wrong)
      : message(std::move(what)), kind(why) {}
  std::string message;
  Kind kind;
};

inline constexpr int kMaxValueDepth = 200;

bool equal(const Value& left, const Value& right, int depth = 0);
// left < right for numbers, strings, lists and tuples; throws a Problem for others.
bool less(const Value& left, const Value& right, int depth = 0);
// Python's `in`.
bool contains(const Value& container, const Value& item);
// How many items len() counts; throws a Problem where Python has no length.
int64_t length_of(const Value& value);
// The items that a loop over the value gives (an iterator is then spent); throws a Problem where
// Python cannot iterate.
Items items_of(const Value& value);

}  // namespace kinora::jinja
