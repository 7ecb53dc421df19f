// How good a sparse plan is, measured against dense attention on the same input.
#pragma once

#include <vector>

#include "attention/attention.h"
#include "attention/plan/plan.h"

namespace kinora {

// Mean over queries and heads of the share of dense attention that the plan's keys hold (recall).
double captured_mass(const Context& context, const Plan& plan, const QueryView& queries,
                     const RowSet& rows, float scale);

// log Σ exp(score) of every query and head under a plan, [count, heads]; −∞ where nothing is read.
std::vector<float> log_sums(const Context& context, const Plan& plan, const QueryView& queries,
                            const RowSet& rows, float scale);

// ‖actual − expected‖ / ‖expected‖ of one head of two outputs [count, heads, d].
double output_error(ConstTensorView actual, ConstTensorView expected, int head);

}  // namespace kinora
