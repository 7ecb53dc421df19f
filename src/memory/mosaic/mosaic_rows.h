// What a question reads of a mosaic memory: the clusters that its queries look at most, the newest
// frames, and one row for every cluster that is not fetched.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

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
  int64_t search = 32768;              // rows of the visual clusters that are searched; 0: all
  VisualMatch visual = VisualMatch::embedding;
  ClusterRank rank = ClusterRank::mass;
  MosaicRules rules;
};

class MosaicRows final : public RowChooser {
 public:
  MosaicRows(const MosaicOptions& options, const RowLayout& layout);

  bool needs_queries() const override { return true; }
  bool learns() const override { return true; }
  void begin(const Context& context, const MemoryGroup& group, const FrameTable& frames,
             int64_t first) override;
  void learn(const Context& context, int layer, const StoredRows& rows) override;
  FrameRows choose(const Context& context, int layer, const StoredRows& rows,
                   const QueryView& queries) override;

  std::shared_ptr<const void> save() const override;
  void restore(const std::shared_ptr<const void>& saved, int64_t tokens) override;
  void write(const std::shared_ptr<const void>& saved, int64_t tokens,
             ArchiveWriter& out) const override;
  void read(const Archive& in, const FrameTable& frames) override;
  std::unique_ptr<RowChooser> clone() const override { return std::make_unique<MosaicRows>(*this); }
  int64_t bytes() const override { return index_->bytes(); }

  const MosaicIndex& index() const { return *index_; }

 private:
  // A cluster that may be fetched or stood for.
  struct Candidate {
    int32_t partition = 0;
    const SemanticCluster* cluster = nullptr;
    std::vector<int32_t> rows;  // those that are not read anyway
    double score = 0;
    bool fetched = false;
  };
  struct Question {
    std::vector<float> queries;  // [pairs, head size], not turned; pairs of a token and a head
    std::vector<float> sum;      // [kv heads × head size]
    int64_t heads = 1;
  };

  MosaicIndex& own();
  Question question_of(const Context& context, const Memory& memory,
                       const QueryView& queries) const;
  std::vector<double> scores(ClusterRank rank, const Question& question,
                             std::span<const float> keys, std::span<const double> weights) const;
  std::vector<bool> searched(const Question& question, int layer,
                             const std::vector<Candidate>& all) const;
  void stand_for(std::vector<Candidate>& left, int64_t most, const StoredRows& rows,
                 FrameRows& out) const;

  MosaicOptions options_;
  int64_t kv_heads_;
  int64_t head_size_;
  std::shared_ptr<const MosaicIndex> index_;
  std::vector<float> asked_;  // mean embedding of the newest text
};

}  // namespace kinora
