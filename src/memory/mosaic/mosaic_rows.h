// What a question reads of a mosaic memory: the clusters that its queries look at most, the newest
// frames, and one row for every cluster that is not fetched.
#pragma once

#include <algorithm>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "memory/mosaic/arriving_rows.h"
#include "memory/mosaic/cluster_choice.h"
#include "memory/mosaic/cluster_list.h"
#include "memory/mosaic/cluster_table.h"
#include "memory/mosaic/mosaic_index.h"
#include "memory/partial/partial_memory.h"
#include "memory/partial/row_chooser.h"

namespace kinora {

// How a question meets the visual clusters: its queries the mean key of a layer, or the mean of its
// embeddings those of the frames.
enum class VisualMatch : uint8_t { query, embedding };
// What ranks clusters: the attention that the question's queries, one by one, would give to the
// mean keys, or the product of the queries' sum and the mean key.
enum class ClusterRank : uint8_t { mass, mean };

struct MosaicOptions {
  PartialOptions reading{.positions = Placing::consecutive};
  int64_t recent = 0;                  // newest rows of frames, whatever is asked
  int64_t representatives = 512;       // rows that stand for clusters, at most …
  double representative_share = 0.25;  // … and of all rows that are read
  int64_t search = 0;                  // rows of the visual clusters that are searched; 0: all
  VisualMatch visual = VisualMatch::embedding;
  ClusterRank rank = ClusterRank::mass;
  MosaicRules rules;
};

class MosaicRows final : public RowChooser {
 public:
  MosaicRows(const MosaicOptions& options, const RowLayout& layout, Device device);

  bool needs_queries() const override { return true; }
  bool learns() const override { return true; }
  void begin(const Context& context, const MemoryGroup& group, const FrameTable& frames,
             int64_t first) override;
  void learn(const Context& context, int layer, const StoredRows& rows) override;
  FrameRows choose(const Context& context, int layer, const StoredRows& rows,
                   const QueryView& queries) override;
  std::vector<int32_t> likely(const Context& context, int layer,
                              const StoredRows& rows) const override;

  std::shared_ptr<const void> save() const override;
  void restore(const std::shared_ptr<const void>& saved, int64_t tokens) override;
  void write(const std::shared_ptr<const void>& saved, int64_t tokens,
             ArchiveWriter& out) const override;
  void read(const Context& context, const Archive& in, const FrameTable& frames) override;
  RowGroups groups(const std::shared_ptr<const void>& saved) const override;
  std::unique_ptr<RowChooser> clone() const override;
  MemoryBytes bytes() const override;

  const MosaicIndex& index() const {
    settle();
    return *index_;
  }

 private:
  // Rows of a layer that the index does not know yet, with the partitions of their frames.
  struct NewRows {
    std::vector<int32_t> places, partitions;
    std::vector<ClusterTable::Wanted> splits;  // to be made with them
  };

  MosaicIndex& own();
  // Newest rows that every question reads.
  int64_t newest_read() const { return std::min(options_.recent, options_.reading.rows / 2); }
  NewRows new_rows(int layer, const StoredRows& rows) const;
  void take_in(const Context& context, int layer, const StoredRows& rows, const NewRows& fresh);
  void start_taking_in(const Context& context, int layer, const StoredRows& rows, NewRows fresh);
  void finish_taking_in(const Context& context);
  // Until the index has all rows that were started: who looks at it calls this first.
  void settle() const;
  void update_table(const Context& context, int layer) const;
  // Questions are queries as they were before they were turned, f32 [tokens, heads, head size].
  std::vector<double> ranks_of_partitions(const Context& context, int layer,
                                          ConstTensorView question, const ClusterList& list) const;
  // By partition, 0 where clusters are not searched; empty: all are.
  std::vector<int32_t> searched(const Context& context, int layer, ConstTensorView question,
                                const UnreadRows& unread) const;
  // By place; `rows` is 0 where a cluster is not searched.
  std::vector<double> scores(const Context& context, int layer, ClusterRank by,
                             ConstTensorView question, const ClusterList& list,
                             std::span<const int32_t> rows) const;
  // What is needed of a layer's clusters until rows that stand for others have been added up.
  struct Held {
    std::unique_lock<std::mutex> lock;  // of the table
    ClusterList clusters;               // where there is no table
    std::optional<UnreadRows> unread;
    std::vector<int32_t> rows;  // that are read, increasing
    std::vector<int32_t> next;  // the best clusters that are not
    std::vector<ClusterTable::Wanted> loose;
    int64_t standing = 0;  // rows that stand for others, at most
  };
  std::shared_ptr<Held> select(const Context& context, int layer, const StoredRows& rows,
                               ConstTensorView question) const;
  BestClusters read_best_here(const Context& context, int layer, ConstTensorView question,
                              UnreadRows& unread, int64_t room, int64_t more) const;
  BestClusters read_best_there(const Context& context, int layer, ConstTensorView question,
                               UnreadRows& unread, int64_t room, int64_t more) const;
  StandIns stand_for(const Context& context, int layer, Held& held) const;

  MosaicOptions options_;
  RowLayout layout_;
  Device device_;
  std::shared_ptr<const MosaicIndex> index_;
  std::vector<float> asked_;                  // mean embedding of the newest text …
  mutable std::vector<int32_t> asked_order_;  // … and visual clusters by how near they are
  Tensor
      question_;  // queries that were last chosen for: f32 [tokens, heads, head size], not turned

  // On a GPU.
  std::shared_ptr<ClusterTable> table_;     // shared with forks
  std::unique_ptr<ArrivingRows> arriving_;  // made with the first frames
  std::vector<NewRows> pending_;            // by layer, under way to the index
  mutable std::future<void> finishing_;     // the last member: its end waits for the work
};

}  // namespace kinora
