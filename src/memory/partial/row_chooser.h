// What decides which rows of frames a question reads, in a memory that keeps them all
// (partial_memory.h). Sliding, uniform, frame-retrieval and mosaic are each one of these.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/files/archive.h"
#include "memory/partial/stored_rows.h"

namespace kinora {

// Rows that stand for others: each at the place of a token, by increasing ordinal, none of which is
// the token of a row that is read. Keys are not turned; a weight of w adds ln w to the score.
struct StandIns {
  std::vector<int32_t> tokens;
  Tensor keys;                 // f32 [tokens, kv heads, head size] on the memory's device
  Tensor values;               // the same
  std::vector<float> weights;  // [tokens]
};

// What a reader gets of the frames before it, in one layer.
struct FrameRows {
  std::vector<int32_t> rows;  // places among the layer's rows, increasing
  // Asked for once, or not at all, when the rows are already on their way; null: there are none.
  std::function<StandIns()> stand_ins = nullptr;
};

class RowChooser {
 public:
  virtual ~RowChooser() = default;

  // What is chosen depends on the reader's queries.
  virtual bool needs_queries() const { return false; }
  // It looks at new frames while they are read in.
  virtual bool learns() const { return false; }
  // A new group, before its rows are there: tokens as the memory has them, from `first` on.
  virtual void begin(const Context& context, const MemoryGroup& group, const FrameTable& frames,
                     int64_t first) {
    (void)context, (void)group, (void)frames, (void)first;
  }
  // A layer has used a group with frames; `rows` counts the group as part of memory.
  virtual void learn(const Context& context, int layer, const StoredRows& rows) {
    (void)context, (void)layer, (void)rows;
  }
  virtual FrameRows choose(const Context& context, int layer, const StoredRows& rows,
                           const QueryView& queries) = 0;

  // Rows that the question which was last chosen for will probably read in another layer;
  // increasing. For those that wait in a file.
  virtual std::vector<int32_t> likely(const Context& context, int layer,
                                      const StoredRows& rows) const {
    (void)context, (void)layer, (void)rows;
    return {};
  }

  // All that it knows, to come back to; it may be shared and must not change any more.
  virtual std::shared_ptr<const void> save() const { return nullptr; }
  // What `save` gave when the memory had this many tokens.
  virtual void restore(const std::shared_ptr<const void>& saved, int64_t tokens) {
    (void)saved, (void)tokens;
  }
  // Writes what `save` gave when the memory had this many tokens; `read` takes it in again, in a
  // memory that has these tokens and no others.
  virtual void write(const std::shared_ptr<const void>& saved, int64_t tokens,
                     ArchiveWriter& out) const {
    (void)saved, (void)tokens, (void)out;
  }
  virtual void read(const Context& context, const Archive& in, const FrameTable& frames) {
    (void)context, (void)in, (void)frames;
  }
  // Rows that are read together, by what `save` gave.
  virtual RowGroups groups(const std::shared_ptr<const void>& saved) const {
    (void)saved;
    return nullptr;
  }
  virtual std::unique_ptr<RowChooser> clone() const = 0;
  virtual MemoryBytes bytes() const { return {}; }  // for what it knows
};

// Whole frames from the newest back, as many as `most` rows hold, then as many rows of the next
// frame as still fit if there would be none otherwise. Increasing.
std::vector<int32_t> newest_rows(const StoredRows& rows, int64_t most);

}  // namespace kinora
