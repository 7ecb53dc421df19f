// The usual picture of a needle test: how often the answer was right, by length (columns) and by
// depth of the needle (rows). Used by `kinora eval --heat-map`.
#pragma once

#include <string>
#include <vector>

#include "draw/canvas.h"
#include "eval/run.h"

namespace kinora {

// One map for every policy, one above the other. Records without a depth are passed over; throws a
// usage error when that leaves none.
Chart needle_heat_map(const EvalOutcome& outcome, const std::vector<std::string>& policies,
                      const std::string& title);

}  // namespace kinora
