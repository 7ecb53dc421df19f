// What a sparse policy would read, shown without reading it: for pictures (`kinora inspect`), for
// judging policies against dense attention (eval/recall/judge.h), and for tests; and how much of a
// query's attention it did read (bench/attention_bench.h).
#pragma once

#include <string>
#include <vector>

#include "attention/attention.h"
#include "attention/plan/plan.h"
#include "attention/runner.h"

namespace kinora {

// Part of a layer's attention. Plans of one layer cover different heads.
struct LabelledPlan {
  std::string label;
  Plan plan;
};

class Planner {
 public:
  virtual ~Planner() = default;

  // The plans that Attention::attend would run for this input, fall-back aside.
  virtual std::vector<LabelledPlan> plans(const Context& context, int layer,
                                          const QueryView& queries, const RowSet& rows,
                                          float scale) = 0;
  // Whether the input would be read densely instead.
  virtual bool falls_back(int layer, const QueryView& queries, const RowSet& rows) const = 0;
  // How many tokens the conversation will have when the prompt under way has been read; 0: not
  // known. Sizes that follow the length of the input (pattern.h) follow this one, so that all
  // groups of a prompt are read with the same; where it is not known, the rows at hand.
  virtual void set_length(int64_t tokens) = 0;
  // Calls of Attention::attend from now on leave here what every query and head read, [queries,
  // heads] on the context's device: with Σ exp over all rows that is the share of the attention
  // that the policy's lists hold. Corrections of the output (delta) change nothing in it. Null
  // pointers end it.
  virtual void keep_state(SoftmaxState state) = 0;
};

}  // namespace kinora
