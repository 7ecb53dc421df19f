// A memory that never grows beyond a fixed number of rows of frames in each layer (HERMES' kind).
// When a group of frames makes it larger, it keeps the rows that are newest, in shallow layers, and
// those that a generic question attends to, in deep ones: the first text of the session stands for
// it. Questions read all that is left; there is nothing to find.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "memory/flat_memory.h"
#include "memory/memory.h"
#include "memory/partial/frame_table.h"
#include "memory/partial/partial_memory.h"
#include "memory/token_list.h"

namespace kinora {

// What makes a row worth keeping: how new it is in shallow layers and what a generic question looks
// at in deep ones (HERMES' kind), or what the question looks at in every layer.
enum class KeepBy : uint8_t { depth, attention };

struct CompactOptions {
  int64_t rows = 8192;  // of frames that stay in a layer
  KeepBy by = KeepBy::depth;
  Placing positions = Placing::original;
};

class CompactMemory final : public Memory {
 public:
  CompactMemory(const RowLayout& layout, Device device, const Retention& retention,
                const CompactOptions& options);

  const RowLayout& layout() const override { return layout_; }
  Device device() const override { return device_; }
  bool needs_question() const override { return newest_->needs_question(); }
  bool prunes_frames() const override { return newest_->prunes_frames(); }
  int64_t kept_of(int64_t visual) const override { return newest_->kept_of(visual); }
  void set_kept_share(double share) override { newest_->set_kept_share(share); }
  bool known_ahead() const override { return goes_on_ && newest_->known_ahead(); }
  bool reads_near() const override { return options_.positions == Placing::consecutive; }

  std::span<const Position> begin(const Context& context, const MemoryGroup& group) override;
  NewRows append(int layer) override { return newest_->append(layer); }
  QueryView queries() const override;
  void read(const Context& context, int layer, const QueryView& queries,
            std::vector<RowSet>& out) override;
  void after(const Context& context, int layer, const QueryView& queries) override;
  void accept(const Context& context, std::span<const int32_t> tokens) override;
  TensorView state(int layer, int32_t node = -1) override;

  MemoryMark mark() const override;
  void rewind(const MemoryMark& mark) override;
  std::unique_ptr<Memory> fork(const MemoryMark& mark) override;

  using Memory::save;
  void save(const MemoryMark& mark, ArchiveWriter& out, const RowGroups& groups) const override;
  void load(const Context& context, const std::shared_ptr<const Archive>& in, Loading how) override;

  int64_t token_count() const override { return folded() + newest_->token_count(); }
  const TokenInfo& token(int64_t ordinal) const override {
    return ordinal < folded() ? tokens_[static_cast<size_t>(ordinal)]
                              : newest_->token(ordinal - folded());
  }
  int64_t row_count(int layer) const override;
  MemoryBytes bytes() const override;

 private:
  // What a layer keeps of older groups. Never changed.
  struct Kept {
    Tensor keys, values;
    std::vector<int32_t> ordinals;
    std::vector<Modality> modalities;
    std::vector<float> times;
    std::vector<Position> positions;  // where the keys stand now

    int64_t rows() const { return static_cast<int64_t>(ordinals.size()); }
  };
  using AllKept = std::vector<std::shared_ptr<const Kept>>;  // by layer; null: nothing yet
  // Queries of the first text, [tokens, heads × head size], as they were before they were turned.
  struct Generic {
    std::vector<int32_t> tokens;
    std::vector<float> queries;
  };
  struct Saved {
    std::shared_ptr<FlatMemory> newest;
    MemoryMark mark;
    AllKept kept;
    int64_t folded = 0;
  };

  int64_t folded() const { return static_cast<int64_t>(tokens_.size()); }
  std::shared_ptr<const Kept> join(const Context& context, int layer, const Saved& from) const;
  std::vector<double> score(const Context& context, int layer, const Kept& all) const;
  std::shared_ptr<const Kept> reduce(const Context& context, int layer, const Kept& all) const;
  void learn_generic(const Context& context, int layer, const QueryView& queries);
  void fold(const Context& context);
  void forget_generic(int64_t tokens);
  static const Saved& saved_of(const MemoryMark& mark);

  RowLayout layout_;
  Device device_;
  Retention retention_;
  CompactOptions options_;
  TokenList tokens_;  // of groups that were folded into what is kept
  AllKept kept_;
  std::shared_ptr<FlatMemory> newest_;  // tokens after those; marks hold on to it
  FrameTable frames_;
  std::vector<Generic> generic_;  // by layer
  bool visual_ = false;           // the newest group has frames
  bool goes_on_ = false;          // it goes on with an answer
  int64_t group_ = 0;             // its first token
  mutable std::vector<int32_t> group_ordinals_;
  std::vector<std::vector<int32_t>> newest_ordinals_;  // by layer, as they were read
};

}  // namespace kinora
