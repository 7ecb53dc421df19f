// Expressions of a template: everything that stands in a tag and has a value. Used by parser.cc.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/syntax.h"
#include "text/jinja/token_reader.h"

namespace kinora::jinja {

class ExpressionParser : public TokenReader {
 public:
  using TokenReader::TokenReader;

 protected:
  using Op = Expression::Op;

  ExpressionPtr make(Op op, int line, std::vector<ExpressionPtr> parts = {}) const;
  template <typename... Parts>
  ExpressionPtr make_of(Op op, int line, Parts... part) const {
    std::vector<ExpressionPtr> parts;
    (parts.push_back(std::move(part)), ...);
    return make(op, line, std::move(parts));
  }
  ExpressionPtr constant(Value value, int line) const;

  // From the loosest binding to the tightest.
  ExpressionPtr parse_expression(bool with_choice = true);
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_compare();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concatenation();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filter);
  ExpressionPtr parse_primary();
  bool at_tuple_end() const;
  // One expression, or several with commas between them, which make a tuple.
  ExpressionPtr parse_tuple(bool in_brackets = false, bool with_choice = true);
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_postfix(ExpressionPtr result);
  ExpressionPtr parse_subscript(ExpressionPtr object, int line);
  ExpressionPtr parse_call(ExpressionPtr callee);
  // Fills in the arguments and the depth that they give.
  void parse_arguments(Expression& call);
  std::string take_dotted_name();
  // |filters, `is` tests and calls of what they give.
  ExpressionPtr parse_filters(ExpressionPtr result);
  ExpressionPtr parse_filter(ExpressionPtr input);
  ExpressionPtr parse_test(ExpressionPtr input);

  std::set<std::string> names_;  // that were read so far

 private:
  static constexpr int kMaxTreeDepth = 500;  // of an expression, however it is written
};

}  // namespace kinora::jinja
