// Drafts with the model itself over few rows of the video (SpecVLM's kind): a memory of its own has
// copies of all text rows that the model reads and of a share of its visual rows, keys turned as
// they are. Needs no weights and no training. A guess costs as much as a pass over these rows, so
// that it pays where rows outweigh the model. The copies are made with the first guess of an
// answer, confirmed text is copied as it comes, and what guesses leave is taken out again.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "attention/policies/dense.h"
#include "attention/row_mass.h"
#include "generate/draft_pace.h"
#include "generate/drafter.h"
#include "memory/flat_memory.h"
#include "model/decoder/decoder.h"

namespace kinora {

// Which visual rows a draft keeps: half of them those that were looked at most, the others evenly;
// or all of them evenly. What was looked at is known where an answer's attention is added up anyway
// (attention/row_mass.h); where not, the pass over its first token is watched.
enum class DraftRows : uint8_t { attention, even };

struct PrunedOptions {
  double keep = 0.1;  // of the visual rows that the model reads
  DraftRows by = DraftRows::attention;
  TreeShape shape{30, 4, 1};
  bool adapt = true;  // as in SparrowOptions
};

// `count` of some rows, increasing: the first half by their mass, the earlier one of equals, the
// others evenly among the rest. Without a mass all of them evenly.
std::vector<int32_t> choose_draft_rows(int64_t rows, std::span<const float> mass, int64_t count);

class PrunedDrafter final : public Drafter {
 public:
  explicit PrunedDrafter(const PrunedOptions& options = {}) : options_(options) {}

  std::string_view kind() const override { return "pruned"; }
  void start(const DraftTarget& target) override;
  RowMass* mass() override;
  Draft propose(std::span<const int32_t> text, int64_t most, int64_t deepest) override;
  void learn(const CheckedDraft& checked) override;
  double plain_seconds() const override { return pace_ ? pace_->costs().pass(1) : 0; }

  // What it remembers; null before the first guess of an answer.
  const Memory* memory() const { return memory_.get(); }

 private:
  // What to copy of a layer: places in each of the sets that the model reads.
  struct LayerRows {
    std::vector<RowSet> sets;
    std::vector<std::vector<int32_t>> places;
    int64_t count = 0;
  };

  bool could_pay(int64_t text) const;
  bool has_chosen() const;
  LayerRows rows_to_copy(int layer, const LayerRows* like) const;
  void catch_up();
  DraftPace::Level run(Sequence& sequence, int64_t wanted);
  DraftPace::Level run_level(const DraftTree& tree, std::span<const int32_t> leaves);

  PrunedOptions options_;
  std::optional<DraftPace> pace_;
  DenseAttention attention_;

  // Of the answer under way.
  std::optional<DraftTarget> target_;
  bool pays_ = true;               // it may, by what is read
  std::unique_ptr<RowMass> mass_;  // null: not wanted, or not yet
  std::vector<float> looked_at_;   // by ordinal; empty: evenly
  std::unique_ptr<FlatMemory> memory_;
  int64_t copied_ = 0;            // tokens of the model's memory that were looked through
  std::vector<TokenInfo> along_;  // the newest token and those after it
  MemoryMark newest_;             // the newest token was read
  int64_t chain_rows_ = 0;        // of the tree under way, while it is a chain
};

}  // namespace kinora
