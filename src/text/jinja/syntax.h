// A template as a tree of statements and expressions; the parser builds it, the interpreter walks
// it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace kinora::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct CallArguments {
  std::vector<ExpressionPtr> values;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr spread;        // *items, or null
  ExpressionPtr spread_named;  // **dict, or null
};

struct Expression {
  enum class Op {
    constant,   // value
    name,       // name
    list,       // parts
    tuple,      // parts
    dict,       // parts: key, value, key, value …
    attribute,  // parts[0].name
    item,       // parts[0][parts[1]]
    slice,      // parts[0][parts[1] : parts[2] : parts[3]], each of the three may be null
    call,       // parts[0](arguments)
    filter,     // parts[0]|name(arguments); parts[0] is null in a filter or set block
    test,       // parts[0] is name(arguments)
    negative,
    positive,
    negation,
    conjunction,
    disjunction,
    choice,   // parts[1] if parts[0] else parts[2]; the last may be null
    compare,  // parts[0] operators[0] parts[1] operators[1] parts[2] …
    add,
    subtract,
    multiply,
    divide,
    floor_divide,
    modulo,
    power,
    concatenate,  // parts
  };
  Op op = Op::constant;
  int line = 1;
  int depth = 1;
  std::string name;
  Value value;
  std::vector<ExpressionPtr> parts;
  std::vector<std::string> operators;
  CallArguments arguments;
};

// Where an assignment goes: names, or one attribute of a namespace.
struct Target {
  std::vector<Target> parts;  // a tuple to take apart; else empty
  std::string name;
  std::string attribute;  // empty but for name.attribute
};

struct Statement;
using Body = std::vector<Statement>;

struct Parameter {
  std::string name;
  ExpressionPtr otherwise;  // or null
};

struct Statement {
  enum class Kind {
    data,        // text
    output,      // expression
    branch,      // the first of `branches` whose expression is true (null: always)
    loop,        // for target in expression if condition: body, else otherwise
    assign,      // target = expression
    capture,     // target = what body writes, through the filters of expression (or null)
    macro,       // text(parameters): body
    call_block,  // expression is the call; parameters and body are its caller
    filter,      // body through the filters of expression
    with,        // assignments, then body in a scope of its own
    scope,       // body in a scope of its own
    stop,        // break
    next,        // continue
  };
  struct Branch;

  Kind kind = Kind::data;
  int line = 1;
  std::string text;
  ExpressionPtr expression;
  ExpressionPtr condition;
  Target target;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
  std::vector<std::pair<Target, ExpressionPtr>> assignments;
  Body body;
  Body otherwise;
  bool recursive = false;
  bool uses_loop = false;     // the body names `loop`
  bool takes_values = false;  // a macro whose body names `varargs`
  bool takes_named = false;   // a macro whose body names `kwargs`
  bool takes_caller = false;  // a macro whose body names `caller`
};

struct Statement::Branch {
  ExpressionPtr condition;
  Body body;
};

}  // namespace kinora::jinja
