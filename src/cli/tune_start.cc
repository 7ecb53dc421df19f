#include "cli/tune_start.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "base/file.h"

namespace kinora::cli {
namespace {

// As far as it is known before the sample is read.
bool same_budget(const HeadTable& table, const TuneStart& start) {
  constexpr double same = 1e-6;
  if (table.budget_unit != start.unit) return false;
  if (table.origin) return table.origin->budget == start.budget_given();
  return !start.budget || std::abs(table.budget - *start.budget / 100) <= same;
}

// The flags that a table was begun with, and the beginning of the ways on.
std::string begun_with(const HeadTable& table) {
  if (table.budget_unit.empty()) return "a budget by the clock, as in earlier versions; give ";
  const std::string unit = "--budget-in " + table.budget_unit;
  const std::string budget =
      table.origin ? table.origin->budget : fmt::format("{:.6g}", 100 * table.budget);
  if (budget.empty()) return unit + " and no --budget; give those, ";
  return fmt::format("--budget {} {}; give those, ", budget, unit);
}

}  // namespace

std::string TuneStart::budget_given() const { return budget ? fmt::format("{}", *budget) : ""; }

HeadTable start_table(const TuneStart& start, const std::string& path, const TableShape& shape,
                      bool part) {
  HeadTable fresh;
  fresh.shape = shape;
  if (start.restart || !real_files().is_file(path)) return fresh;
  HeadTable table = parse_head_table(real_files().read(path), path);
  TableShape expected = shape;
  expected.heads = table.shape.heads;
  if (table.shape != expected) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: holds the table of another model; give --restart to replace it or "
                            "another --output",
                            path));
  }
  const bool same = same_budget(table, start);
  if (table.complete()) return part && table.origin && same ? table : fresh;
  if (!same) {
    throw Error(ErrorKind::usage, fmt::format("{}: holds an unfinished search that was begun with "
                                              "{}--restart, or another --output",
                                              path, begun_with(table)));
  }
  return table;
}

}  // namespace kinora::cli
