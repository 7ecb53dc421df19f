// The offline search that gives every head its pattern (algorithm 4 of the paper, see
// docs/methods/mminference.md): within modalities, across pairs of them, then between boundaries;
// all candidates held to one budget of measured run time, scored by the error of the output.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "attention/attention.h"
#include "attention/observer.h"
#include "attention/policies/head_table.h"
#include "base/cancel.h"

namespace kinora {

struct SearchOptions {
  int32_t frame_stride = 64;            // tokens per frame
  std::vector<PatternSpec> candidates;  // empty: search_space(frame_stride)
  std::vector<Boundary> boundaries = {Boundary::none, Boundary::key, Boundary::query,
                                      Boundary::both};
  // A head may take as long as this A-shape takes on this device, or, where `dense_share` is set,
  // this share of what dense attention takes.
  PatternSpec budget = parse_pattern("a-shape:sink=1024,local=4096");
  double dense_share = 0;
  int64_t group_queries =
      2048;             // the last ones of the sample; as many as a session reads at a time
  bool grow = true;     // candidates use the whole budget; false: sizes are only cut
  double slack = 1.1;   // measured times scatter
  double spare = 0.02;  // of the budget, for every region, so that small ones can stay whole
  int repeats = 2;      // the fastest counts
  CancelToken cancel;
};

// The candidates of all patterns: table 3 of the paper.
std::vector<PatternSpec> search_space(int32_t frame_stride);

// Candidates that differ in size only are one candidate once all are brought to one cost.
std::vector<PatternSpec> distinct_at_one_cost(const std::vector<PatternSpec>& candidates);

// Throws a usage error when the sample cannot be searched: too short, or a modality among the rows
// that no query has.
void check_sample(const QueryView& queries, const RowSet& rows);

// The budget of one head in seconds, measured.
double measure_budget(const Context& context, const QueryView& queries, const RowSet& rows,
                      float scale, int head, const SearchOptions& options);

HeadChoice search_head(const Context& context, const QueryView& queries, const RowSet& rows,
                       float scale, int head, double budget_seconds, const SearchOptions& options);

// Searches the heads of every layer that it is shown and does not yet find in the table. Let it
// observe a session that reads a sample densely, as one group; a search that was stopped goes on
// where the table ends. The table knows its layers; its heads are made when they are first seen.
// Patterns run on the CPU, so that is where times are taken, wherever the sample is read.
class PatternSearch final : public AttentionObserver {
 public:
  using Found = std::function<void(int layer, int head, const HeadChoice& choice)>;

  PatternSearch(HeadTable& table, SearchOptions options, Found found)
      : table_(table), options_(std::move(options)), found_(std::move(found)) {}

  void see(const Context& context, const AttentionCall& call) override;

 private:
  HeadTable& table_;
  SearchOptions options_;
  Found found_;
};

}  // namespace kinora
