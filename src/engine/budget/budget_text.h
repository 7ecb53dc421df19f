// What the budget planner decided, in words: for warnings, forecasts and refusals.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/budget/budget_planner.h"
#include "video/sampling.h"

namespace kinora {

// "93.1 MiB": rounded up, so that a budget of what is shown is enough.
std::string size_text(int64_t bytes);

// Of a plan that does not fit: what was needed, what was allowed, and the smallest that works.
Error refusal(const BudgetRequest& request, const BudgetPlan& plan);

// Why less of every group of frames stays.
std::string share_change(const BudgetRequest& request, const BudgetPlan& plan);

// Why only these frames of a source are looked at, out of `wanted`.
std::string frames_change(const BudgetRequest& request, const BudgetPlan& plan,
                          const std::string& source, const std::vector<SampledFrame>& frames,
                          size_t wanted);

}  // namespace kinora
