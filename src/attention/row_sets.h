// Attention of one group over what a memory gives it: several disjoint sets of rows, rows with
// weights, sets that serve only some queries, token trees. Partial results carry their maxima and
// sums, so the whole is exactly that of one set.
#pragma once

#include <span>

#include "attention/attention.h"
#include "attention/runner.h"

namespace kinora {

// One plain set goes to the policy as it is. Several plain sets are joined for a policy that
// chooses rows, and read one after another by one that reads everything. Weights, trees and sets
// for some queries are read whole, whatever the policy: such groups are small.
//   out: [count, heads, head size], as in Attention::attend
void attend_sets(Attention& attention, const Context& context, int layer, const QueryView& queries,
                 std::span<const RowSet> sets, float scale, TensorView out);

// Every query reads every row that it may read in the sets that serve it. `state`, if given, is
// filled and lies on the same device as the output.
void attend_densely(const Context& context, const QueryView& queries, std::span<const RowSet> sets,
                    float scale, TensorView out, SoftmaxState state = {});

}  // namespace kinora
