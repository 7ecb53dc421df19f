// Runs a parsed template: looks names up, computes expressions, writes text. One run is one object;
// every run is bounded in steps, in depth and in what it writes.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/runtime.h"
#include "text/jinja/syntax.h"

namespace kinora::jinja {

struct Limits {
  int64_t steps = 4'000'000;  // one for every node walked and every 64 bytes or so made
  int depth = 400;            // of nodes within nodes, calls of macros included
  size_t output = size_t{64} << 20;
};

// The names of a block, and where to look for others.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string, Value>> names;
  bool captured = false;  // a macro was made here and may look names up later

  const Value* find(std::string_view name) const;
  void put(std::string_view name, Value value);
};

class Interpreter final : public Runtime {
 public:
  // The variables must outlive the run.
  Interpreter(const Dict& variables, const Limits& limits, std::function<std::tm()> clock);
  ~Interpreter() override;
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Throws a Problem; line() then says where.
  std::string run(const Body& body);
  int line() const { return line_; }

  void spend(size_t amount) override;
  Value item(const Value& object, const Value& key) override;
  Value apply_filter(std::string_view name, const Value& input,
                     const Arguments& arguments) override;
  bool apply_test(std::string_view name, const Value& input, const Arguments& arguments) override;
  std::tm now() const override { return clock_(); }
  Value make_namespace(Dict members) override;

  // For macros and loops, which run parts of the template when they are called.
  std::string call_macro(const Statement& macro, Scope& defined_in, const Arguments& arguments);
  std::string repeat_loop(const Statement& loop, Scope& outside, const Value& items, int depth);

 private:
  enum class Flow { on, stop, next };
  // Counts how deep the walk is.
  class Deeper {
   public:
    explicit Deeper(Interpreter& run);
    ~Deeper() { --run_.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    Interpreter& run_;
  };
  class Inside;

  Flow execute(const Body& body);
  Flow execute(const Statement& statement);
  Flow execute_branch(const Statement& statement);
  void execute_loop(const Statement& statement, const Value& items, int depth);
  void execute_with(const Statement& statement);
  void execute_call_block(const Statement& statement);
  std::string written_by(const Body& body);
  void assign(const Target& target, const Value& value);
  Value make_macro(const Statement& statement);
  void write(std::string_view text);

  Value evaluate(const Expression& expression);
  Value evaluate_name(const Expression& expression);
  Value evaluate_rows(const Expression& expression);
  Value evaluate_slice(const Expression& expression);
  Value evaluate_compare(const Expression& expression);
  Value evaluate_concatenation(const Expression& expression);
  Value evaluate_arithmetic(const Expression& expression);
  Value evaluate_call(const Expression& expression);
  Value evaluate_filters(const Expression& filters, const Value& input);
  Value attribute(const Value& object, const std::string& name);
  Arguments evaluate(const CallArguments& arguments);
  bool compare(std::string_view op, const Value& left, const Value& right);

  const Dict& variables_;
  Limits limits_;
  std::function<std::tm()> clock_;
  std::deque<Scope> scopes_;                       // all that are or may be needed
  std::vector<std::shared_ptr<Dict>> namespaces_;  // of this run
  Scope* scope_ = nullptr;
  std::string* out_ = nullptr;
  int64_t steps_ = 0;
  int depth_ = 0;
  int line_ = 1;
};

}  // namespace kinora::jinja
