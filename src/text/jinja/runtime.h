// What filters, tests, methods and functions need of the interpreter that runs them.
#pragma once

#include <ctime>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace kinora::jinja {

class Runtime {
 public:
  virtual ~Runtime() = default;

  // Counts work that grows with `amount` bytes or items; throws a Problem past the limit.
  virtual void spend(size_t amount) = 0;
  virtual Value item(const Value& object, const Value& key) = 0;
  virtual Value apply_filter(std::string_view name, const Value& input,
                             const Arguments& arguments) = 0;
  virtual bool apply_test(std::string_view name, const Value& input,
                          const Arguments& arguments) = 0;
  virtual std::tm now() const = 0;
  // A namespace, which the interpreter owns until the end, for it may hold itself.
  virtual Value make_namespace(Dict members) = 0;
};

class NativeFunction final : public Callable {
 public:
  using Body = std::function<Value(const Arguments&)>;
  explicit NativeFunction(Body body) : body_(std::move(body)) {}
  Value call(const Arguments& arguments) override { return body_(arguments); }

 private:
  Body body_;
};

inline Value make_function(NativeFunction::Body body) {
  return Value(
      std::static_pointer_cast<Callable>(std::make_shared<NativeFunction>(std::move(body))));
}

using Filter = Value (*)(Runtime&, const Value& input, const Arguments&);
using Test = bool (*)(Runtime&, const Value& input, const Arguments&);

Filter find_filter(std::string_view name);  // or null; filters.cc and filters_items.cc
Test find_test(std::string_view name);      // or null; tests.cc
// A global function of jinja2 or transformers; functions.cc.
std::optional<Value> find_function(Runtime& runtime, std::string_view name);
// The method of a Python object, bound to it; undefined with the reason for one that the sandbox
// forbids; methods.cc.
std::optional<Value> find_method(Runtime& runtime, const Value& object, std::string_view name);

// object[key] with an undefined value where there is none; never a method.
Value item_or_undefined(const Value& object, const Value& key);

}  // namespace kinora::jinja
