// How the rows of a group are compared when only part of them stays in memory. Each rule is in a
// file of its own (key_norm.cc, …) and in the list of policies.cc.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "base/context.h"
#include "base/tensor.h"
#include "memory/row_ops/best_rows.h"

namespace kinora {

class RetentionRule {
 public:
  virtual ~RetentionRule() = default;
  virtual std::string_view name() const = 0;
  // Whether rows are chosen by what the question looks at, so that it must be known first.
  virtual bool needs_question() const { return false; }

  // One score per row, higher is better. keys, values: [rows, kv heads, head size] on the CPU;
  // question: the queries of its tokens, [tokens, heads, head size], for rules that need it.
  virtual std::vector<double> scores(const Context& context, ConstTensorView keys,
                                     ConstTensorView values, ConstTensorView question) const = 0;

  // The same order for the kernel that chooses rows on a GPU, given rows there; of a question it
  // takes the sum of all queries. Empty: the kernel has no such order, and rows are copied to the
  // host to be scored.
  virtual std::optional<cuda::RowChoice> on_gpu(ConstTensorView /*keys*/,
                                                ConstTensorView /*values*/) const {
    return std::nullopt;
  }
};

}  // namespace kinora
