// What `kinora tune` goes on from: an unfinished table, or a finished part of a search on several
// prompts, but only with the budget that it was begun with.
#pragma once

#include <optional>
#include <string>

#include "attention/policies/head_table.h"
#include "attention/search/search_cost.h"

namespace kinora::cli {

struct TuneStart {
  std::optional<double> budget;  // % of what dense attention costs
  std::string unit = cost_unit_name(CostUnit::flops);
  bool restart = false;

  std::string budget_given() const;  // "30"; empty: none was
};

// The table at that path as far as it was searched; an empty one if there is nothing, or nothing to
// keep: what is finished is searched anew, unless it is a `part`. Throws an error for a table of
// another model, or one begun with another budget.
HeadTable start_table(const TuneStart& start, const std::string& path, const TableShape& shape,
                      bool part);

}  // namespace kinora::cli
