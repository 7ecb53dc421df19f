#include "text/jinja/interpreter.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/loop.h"
#include "text/jinja/printed.h"

namespace kinora::jinja {
namespace {

class Macro final : public Callable {
 public:
  Macro(Interpreter& interpreter, const Statement& statement, Scope& defined_in)
      : interpreter_(interpreter), statement_(statement), defined_in_(defined_in) {}

  Value call(const Arguments& arguments) override {
    return interpreter_.call_macro(statement_, defined_in_, arguments);
  }
  std::optional<Value> attribute(std::string_view name) const override {
    if (name == "name") return Value(statement_.text);
    return std::nullopt;
  }
  std::string_view type_name() const override { return "Macro"; }

 private:
  Interpreter& interpreter_;
  const Statement& statement_;
  Scope& defined_in_;
};

}  // namespace

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent) {
    for (const auto& [key, value] : scope->names) {
      if (key == name) return &value;
    }
  }
  return nullptr;
}

void Scope::put(std::string_view name, Value value) {
  for (auto& [key, old] : names) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  names.emplace_back(name, std::move(value));
}

Interpreter::Deeper::Deeper(Interpreter& run) : run_(run) {
  if (run_.depth_ >= run_.limits_.depth) {
    throw Problem("the template nests too deeply", Problem::Kind::limit);
  }
  ++run_.depth_;
}

// A scope of its own inside `parent` for as long as this lives; longer where a macro was made in
// it.
class Interpreter::Inside {
 public:
  Inside(Interpreter& run, Scope* parent)
      : run_(run), before_(run.scope_), own_(&run.scopes_.emplace_back()) {
    own_->parent = parent;
    run_.scope_ = own_;
  }
  ~Inside() {
    run_.scope_ = before_;
    if (!own_->captured && own_ == &run_.scopes_.back()) run_.scopes_.pop_back();
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  Interpreter& run_;
  Scope* before_;
  Scope* own_;
};

Interpreter::Interpreter(const Dict& variables, const Limits& limits,
                         std::function<std::tm()> clock)
    : variables_(variables), limits_(limits), clock_(std::move(clock)) {}

// A namespace may hold itself, so that nobody else would let go of it.
Interpreter::~Interpreter() {
  for (const std::shared_ptr<Dict>& space : namespaces_) space->entries.clear();
}

std::string Interpreter::run(const Body& body) {
  std::string text;
  out_ = &text;
  const Inside scope(*this, nullptr);
  execute(body);
  return text;
}

void Interpreter::spend(size_t amount) {
  steps_ += 1 + static_cast<int64_t>(amount / 64);
  if (steps_ > limits_.steps) {
    throw Problem("the template takes too many steps", Problem::Kind::limit);
  }
}

Value Interpreter::make_namespace(Dict members) {
  auto made = std::make_shared<Dict>(std::move(members));
  made->is_namespace = true;
  namespaces_.push_back(made);
  return made;
}

void Interpreter::write(std::string_view text) {
  spend(text.size());
  if (out_->size() + text.size() > limits_.output) {
    throw Problem("the template writes too much", Problem::Kind::limit);
  }
  *out_ += text;
}

Interpreter::Flow Interpreter::execute(const Body& body) {
  const Deeper deeper(*this);
  for (const Statement& statement : body) {
    const Flow flow = execute(statement);
    if (flow != Flow::on) return flow;
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::execute(const Statement& statement) {
  using Kind = Statement::Kind;
  line_ = statement.line;
  spend(0);
  switch (statement.kind) {
    case Kind::data:
      write(statement.text);
      break;
    case Kind::output:
      write(to_text(evaluate(*statement.expression)));
      break;
    case Kind::branch:
      return execute_branch(statement);
    case Kind::loop:
      execute_loop(statement, evaluate(*statement.expression), 1);
      break;
    case Kind::assign:
      assign(statement.target, evaluate(*statement.expression));
      break;
    case Kind::capture: {
      Value text = written_by(statement.body);
      if (statement.expression) text = evaluate_filters(*statement.expression, text);
      assign(statement.target, text);
      break;
    }
    case Kind::macro:
      scope_->put(statement.text, make_macro(statement));
      break;
    case Kind::call_block:
      execute_call_block(statement);
      break;
    case Kind::filter:
      write(to_text(evaluate_filters(*statement.expression, written_by(statement.body))));
      break;
    case Kind::with:
      execute_with(statement);
      break;
    case Kind::scope: {
      const Inside scope(*this, scope_);
      return execute(statement.body);
    }
    case Kind::stop:
      return Flow::stop;
    case Kind::next:
      return Flow::next;
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::execute_branch(const Statement& statement) {
  for (const Statement::Branch& branch : statement.branches) {
    if (!branch.condition || evaluate(*branch.condition).truth()) return execute(branch.body);
  }
  return Flow::on;
}

void Interpreter::execute_loop(const Statement& statement, const Value& over, int depth) {
  Items items = items_of(over);
  spend(items.size() * sizeof(Value));
  const auto wanted = [&](const Value& item) {
    const Inside scope(*this, scope_);
    assign(statement.target, item);
    return evaluate(*statement.condition).truth();
  };
  // Without `loop` the condition sees what the body did to namespaces; with it, all items are
  // chosen before.
  const bool choose_first = statement.condition && (statement.uses_loop || statement.recursive);
  if (choose_first) {
    std::erase_if(items, [&](const Value& item) { return !wanted(item); });
  }
  std::shared_ptr<Loop> loop;
  if (statement.uses_loop || statement.recursive) {
    Loop::Again again;
    if (statement.recursive) {
      again = [this, &statement, outside = scope_, depth](const Value& more) -> Value {
        return repeat_loop(statement, *outside, more, depth + 1);
      };
    }
    loop = std::make_shared<Loop>(items, depth, std::move(again));
  }
  bool any = false;
  for (size_t i = 0; i < items.size(); ++i) {
    if (statement.condition && !choose_first && !wanted(items[i])) continue;
    any = true;
    const Inside scope(*this, scope_);
    if (loop) {
      loop->move_to(i);
      scope_->put("loop", Value(std::static_pointer_cast<Callable>(loop)));
    }
    assign(statement.target, items[i]);
    if (execute(statement.body) == Flow::stop) break;
  }
  if (any) return;
  const Inside scope(*this, scope_);
  execute(statement.otherwise);
}

std::string Interpreter::repeat_loop(const Statement& loop, Scope& outside, const Value& items,
                                     int depth) {
  const Deeper deeper(*this);
  std::string text;
  std::string* const before = std::exchange(out_, &text);
  Scope* const scope = std::exchange(scope_, &outside);
  execute_loop(loop, items, depth);
  out_ = before;
  scope_ = scope;
  return text;
}

void Interpreter::execute_with(const Statement& statement) {
  Items values;
  for (const auto& [target, expression] : statement.assignments) {
    values.push_back(evaluate(*expression));
  }
  const Inside scope(*this, scope_);
  for (size_t i = 0; i < values.size(); ++i) assign(statement.assignments[i].first, values[i]);
  execute(statement.body);
}

void Interpreter::execute_call_block(const Statement& statement) {
  const Value caller = make_macro(statement);
  const Expression& call = *statement.expression;
  const Value callee = evaluate(*call.parts[0]);
  Arguments arguments = evaluate(call.arguments);
  arguments.named.emplace_back("caller", caller);
  if (!callee.is_callable()) {
    throw Problem(callee.is_undefined()
                      ? callee.why_undefined()
                      : fmt::format("'{}' object is not callable", callee.type_name()));
  }
  write(to_text(callee.callable().call(arguments)));
}

std::string Interpreter::written_by(const Body& body) {
  std::string text;
  std::string* const before = std::exchange(out_, &text);
  const Inside scope(*this, scope_);
  execute(body);
  out_ = before;
  return text;
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (!target.parts.empty()) {
    const Items items = items_of(value);
    if (items.size() != target.parts.size()) {
      throw Problem(fmt::format("{} values to unpack where {} are expected", items.size(),
                                target.parts.size()));
    }
    for (size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i]);
    return;
  }
  if (target.attribute.empty()) return scope_->put(target.name, value);
  const Value* space = scope_->find(target.name);
  if (space == nullptr || !space->is_namespace()) {
    throw Problem("cannot assign attribute on non-namespace object");
  }
  spend(space->dict().entries.size());
  const Value kept = *space;
  kept.dict().put(target.attribute, value);
}

Value Interpreter::make_macro(const Statement& statement) {
  for (Scope* scope = scope_; scope != nullptr && !scope->captured; scope = scope->parent) {
    scope->captured = true;
  }
  return Value(
      std::static_pointer_cast<Callable>(std::make_shared<Macro>(*this, statement, *scope_)));
}

std::string Interpreter::call_macro(const Statement& macro, Scope& defined_in,
                                    const Arguments& arguments) {
  const Deeper deeper(*this);
  const Inside scope(*this, &defined_in);
  const size_t known = macro.parameters.size();
  const std::string shown = macro.text.empty() ? "caller" : macro.text;
  std::vector<std::pair<std::string, Value>> named = arguments.named;
  const auto take_named = [&](std::string_view name) -> std::optional<Value> {
    const auto found = std::ranges::find(named, name, [](const auto& one) { return one.first; });
    if (found == named.end()) return std::nullopt;
    std::optional<Value> value = std::move(found->second);
    named.erase(found);
    return value;
  };
  for (size_t i = 0; i < known; ++i) {
    const Parameter& parameter = macro.parameters[i];
    std::optional<Value> value = i < arguments.values.size() ? std::optional(arguments.values[i])
                                                             : take_named(parameter.name);
    if (!value && parameter.otherwise) value = evaluate(*parameter.otherwise);
    if (!value) {
      value = Value::undefined(fmt::format("parameter '{}' was not provided", parameter.name));
    }
    scope_->put(parameter.name, std::move(*value));
  }
  if (macro.takes_caller) {
    scope_->put("caller", take_named("caller").value_or(Value::undefined("No caller defined")));
  }
  if (macro.takes_named) {
    Dict rest;
    for (auto& [name, value] : named) rest.put(name, std::move(value));
    scope_->put("kwargs", Value::dict(std::move(rest)));
  } else if (!named.empty()) {
    throw Problem(
        fmt::format("macro '{}' takes no keyword argument '{}'", shown, named.front().first));
  }
  if (macro.takes_values) {
    const auto first = static_cast<std::ptrdiff_t>(std::min(known, arguments.values.size()));
    scope_->put("varargs",
                Value::tuple(Items(arguments.values.begin() + first, arguments.values.end())));
  } else if (arguments.values.size() > known) {
    throw Problem(fmt::format("macro '{}' takes not more than {} argument(s)", shown, known));
  }
  std::string text;
  std::string* const before = std::exchange(out_, &text);
  execute(macro.body);
  out_ = before;
  return text;
}

}  // namespace kinora::jinja
