// The offline search that gives every head its pattern (algorithm 4 of the paper, see
// docs/methods/mminference.md): within modalities, across pairs of them, then between boundaries;
// all candidates held to one budget of run time, scored by the error of the output, which counts
// more in the rows that later text reads. One head: head_search.h.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "attention/observer.h"
#include "attention/policies/head_table.h"
#include "attention/policies/sparse_attention.h"
#include "base/cancel.h"

namespace kinora {

class SearchClock;

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
      2048;  // the last ones of the sample; as many as a session reads at a time
  // Tokens of text at the end of the sample that will be dense, at most; they are not searched.
  int64_t dense_last = default_dense_last;
  bool grow = true;  // candidates use the whole budget; false: sizes are only cut
  // Sizes aim at the budget itself; because times are known only roughly, a little more passes.
  double slack = 1.1;
  // Seconds that a plan takes; empty: as the runner is timed on this device (search_clock.h),
  // indexes included.
  std::function<double(const Plan& plan, const QueryView& queries, const RowSet& rows)> cost;
  double spare = 0.02;  // of the budget, for every region, so that small ones can stay whole
  int repeats = 2;      // of what is timed; the fastest counts
  CancelToken cancel;
};

// The candidates of all patterns: table 3 of the paper.
std::vector<PatternSpec> search_space(int32_t frame_stride);

// The shapes of all candidates. Those that differ in size only are one shape once all are brought
// to one cost.
std::vector<PatternSpec> distinct_at_one_cost(const std::vector<PatternSpec>& candidates);

// Throws a usage error when the sample cannot be searched: too short, or a modality among the rows
// that no query has.
void check_sample(const QueryView& queries, const RowSet& rows);

// The options with their candidates spelled out: search_space where none are given, and shapes only
// where sizes grow to the budget anyway.
SearchOptions with_candidates(SearchOptions options);

// The budget of one head in seconds.
double measure_budget(const SearchClock& clock, const QueryView& queries, const RowSet& rows,
                      int head, const SearchOptions& options);

// `weights`: how much the error of each query's output counts, [queries]; empty: all the same.
HeadChoice search_head(const Context& context, const QueryView& queries, const RowSet& rows,
                       float scale, int head, double budget_seconds, const SearchOptions& options,
                       std::span<const float> weights = {});

// What later text makes of these queries' rows: half of the weight is even, the other half goes
// where the last 128 text queries of the whole group attend, all heads together. The answer goes on
// from the text that ends the group: where some of it is searched, it has a third of the weight to
// itself, and the other two are thirds as well. The mean is 1. `searched` are some of the group's
// queries.
std::vector<float> weights_of_rows(const Context& context, const QueryView& group,
                                   const RowSet& rows, float scale, const QueryView& searched);

// Searches the heads of every layer that it is shown and does not yet find in the table. Let it
// observe a session that reads a sample densely, as one group; a search that was stopped goes on
// where the table ends. The table knows its layers; its heads are made when they are first seen.
// Patterns run on the CPU, so that is where times are taken, wherever the sample is read.
class PatternSearch final : public AttentionObserver {
 public:
  using Found = std::function<void(int layer, int head, const HeadChoice& choice)>;

  PatternSearch(HeadTable& table, SearchOptions options, Found found);
  ~PatternSearch() override;

  void see(const Context& context, const AttentionCall& call) override;

 private:
  HeadTable& table_;
  SearchOptions options_;
  Found found_;
  std::unique_ptr<SearchClock> clock_;  // set in the first layer that is searched
};

// A search on several prompts: each of them gave a table, and now every prompt tries all of them,
// observed as above. A head takes the choice whose error, averaged over the prompts, is the
// smallest among those within the budget.
class TableTrial final : public AttentionObserver {
 public:
  // Complete tables of one model.
  TableTrial(std::vector<HeadTable> tables, SearchOptions options);
  ~TableTrial() override;

  void see(const Context& context, const AttentionCall& call) override;

  // After all prompts. Recall, error and seconds are means over them.
  HeadTable best() const;

 private:
  // What one choice came to, summed over prompts.
  struct Score {
    double recall = 0, error = 0, seconds = 0;
    double cost = 0;  // seconds / budget of the prompt
  };

  std::vector<HeadTable> tables_;
  SearchOptions options_;
  std::vector<Score> scores_;     // [layers × heads, tables]
  std::vector<int64_t> prompts_;  // [layers]: seen so far
  // Of the prompt under way, from its first layer.
  std::unique_ptr<SearchClock> clock_;
  double budget_ = 0;
};

}  // namespace kinora
