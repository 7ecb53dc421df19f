// The offline search that gives every head its pattern (algorithm 4 of the paper, see
// docs/methods/mminference.md): within modalities, across pairs of them, then between boundaries;
// all candidates held to one budget, scored by the error of the output, which counts more in the
// rows that later text reads. Costs are counted (search_cost.h), so that the same sample, budget
// and program give the same table. One head: head_search.h.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "attention/observer.h"
#include "attention/policies/head_table.h"
#include "attention/policies/sparse_attention.h"
#include "attention/search/sample_groups.h"
#include "attention/search/search_cost.h"
#include "base/cancel.h"

namespace kinora {

struct SearchOptions {
  int32_t frame_stride = 64;            // tokens per frame
  std::vector<PatternSpec> candidates;  // empty: search_space(frame_stride)
  std::vector<Boundary> boundaries = {Boundary::none, Boundary::key, Boundary::query,
                                      Boundary::both};
  // What a head may cost, over all of the sample: what this A-shape costs or, where `dense_share`
  // is set, this share of what dense attention costs.
  PatternSpec budget = parse_pattern("a-shape:sink=1024,local=4096");
  double dense_share = 0;
  CostUnit unit = CostUnit::flops;
  // As many as a session reads at a time. Errors are those of the last ones of the sample.
  int64_t group_queries = 2048;
  // Tokens of text at the end of the sample that will be dense, at most; they are not searched.
  // 0: the question is searched, and where text asks only patterns compete whose lines follow it.
  int64_t dense_last = default_dense_last;
  bool grow = true;     // candidates use the whole budget; false: sizes are only cut
  double spare = 0.02;  // of the budget, for every region, so that small ones can stay whole
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

// `weights`: how much the error of each of the last group's outputs counts; empty: all the same.
HeadChoice search_head(const Context& context, const QueryView& queries, const RowSet& rows,
                       float scale, int head, const SearchOptions& options,
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
// Patterns run on the CPU, wherever the sample is read.
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
  bool begun_ = false;
};

// A search on several prompts: each of them gave a table, and now every prompt tries all of them,
// observed as above. A head takes the choice whose error, averaged over the prompts, is the
// smallest among those that keep the budget on average, a twentieth more allowed; where none does,
// the cheapest.
class TableTrial final : public AttentionObserver {
 public:
  // Complete tables of one model.
  TableTrial(std::vector<HeadTable> tables, SearchOptions options);
  ~TableTrial() override;

  void see(const Context& context, const AttentionCall& call) override;

  // After all prompts. Recall, error and costs are means over them.
  HeadTable best() const;

 private:
  // What one choice came to, summed over prompts.
  struct Score {
    double recall = 0, error = 0, flops = 0, index = 0, time = 0;
    double cost = 0;  // relative to the budget of the prompt
  };

  std::vector<HeadTable> tables_;
  SearchOptions options_;
  std::vector<Score> scores_;     // [layers × heads, tables]
  std::vector<int64_t> prompts_;  // [layers]: seen so far
};

}  // namespace kinora
