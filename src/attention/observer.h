// Looking on while a session reads: an observer is shown the queries and rows of every layer's
// attention, group by group, from the very prefill that answers. `kinora tune` searches patterns
// that way (search/search.h), `kinora inspect` draws what it sees (search/inspection.h), and
// `kinora eval --recall` judges policies (eval/recall/judge.h). Nothing is kept between calls but
// what an observer itself keeps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/attention.h"

namespace kinora {

// Tokens [first, first + count), by their ordinals, of a conversation that has `total` when the
// prompt has been read.
struct PromptGroup {
  int64_t first = 0;
  int64_t count = 0;
  int64_t total = 0;
};

// One layer's attention of one group, as the memory gave the rows. Valid during the call.
struct AttentionCall {
  int layer = 0;
  QueryView queries;  // without probes
  std::span<const RowSet> sets;
  float scale = 1;
};

class AttentionObserver {
 public:
  virtual ~AttentionObserver() = default;

  virtual void begin_group(const PromptGroup& group) { (void)group; }
  virtual bool wants(int layer) const {
    (void)layer;
    return true;
  }
  // Called after the layer's attention and before the memory prunes. What it throws ends the
  // prefill.
  virtual void see(const Context& context, const AttentionCall& call) = 0;
};

// A call where the CPU reads it: queries f32, all rows in one set, in order. Copies only what lies
// elsewhere or in several sets. Throws unsupported where a row's weight or the queries that it
// serves would be lost.
class HostCall {
 public:
  explicit HostCall(const AttentionCall& call);
  HostCall(const HostCall&) = delete;
  HostCall& operator=(const HostCall&) = delete;

  const QueryView& queries() const { return queries_; }
  const RowSet& rows() const { return rows_; }

 private:
  void join(std::span<const RowSet> sets);

  QueryView queries_;
  RowSet rows_;
  Tensor query_data_, keys_, values_;
  std::vector<int32_t> ordinals_;
  std::vector<Modality> modalities_;
};

}  // namespace kinora
