// The rows of one layer in front of the group that is being read, as those see them who choose
// among them: numbered one after another, whatever blocks they lie in.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memory/memory.h"
#include "memory/partial/frame_table.h"

namespace kinora {

class StoredRows {
 public:
  // `sets` are all rows of the layer; those of `first` and later tokens are the group's own.
  StoredRows(const Memory& memory, int layer, const FrameTable& frames, std::vector<RowSet> sets,
             int32_t first);

  const Memory& memory() const { return memory_; }
  const FrameTable& frames() const { return frames_; }
  const std::vector<RowSet>& sets() const { return sets_; }
  int32_t first_token() const { return first_; }  // of the group
  int64_t count() const { return count_; }        // rows in front of the group
  int64_t total() const { return begins_.back(); }
  int64_t begin_of_set(size_t set) const { return begins_[set]; }

  const TokenInfo& token(int64_t row) const { return memory_.token(ordinal(row)); }
  int32_t ordinal(int64_t row) const;
  // Of increasing rows.
  std::vector<int32_t> ordinals(std::span<const int32_t> rows) const;
  // The first row whose token is not before this one.
  int64_t row_of(int64_t token) const;
  // Rows [first, second) of a frame; fewer than it has tokens where some were pruned.
  std::pair<int64_t, int64_t> rows_of(const Frame& frame) const {
    return {row_of(frame.begin), row_of(frame.end)};
  }

  // Copies of keys and values of these rows, increasing, on the memory's device.
  void copy(const Context& context, std::span<const int32_t> rows, Tensor& keys,
            Tensor& values) const;
  // Keys as they were before they were turned, and values; f32 [rows, kv heads × head size] on the
  // host. On a GPU this waits.
  std::vector<float> plain_keys(const Context& context, std::span<const int32_t> rows) const;
  std::vector<float> values(const Context& context, std::span<const int32_t> rows) const;
  // The same on the memory's device, f32 [rows, kv heads, head size], in any order of rows. On a
  // GPU this only starts the work.
  Tensor plain_keys_there(const Context& context, std::span<const int32_t> rows) const;
  Tensor values_there(const Context& context, std::span<const int32_t> rows) const;

 private:
  void fetch(const Context& context, std::span<const int32_t> rows) const;
  int32_t ordinal_in(size_t set, int64_t place) const;
  // Calls for the rows of one set after another: set(number, first of `rows`, places in the set).
  template <class Each>
  void by_set(std::span<const int32_t> rows, const Each& each) const;
  Tensor copy_of(const Context& context, std::span<const int32_t> rows,
                 ConstTensorView RowSet::*field) const;

  const Memory& memory_;
  int layer_;
  const FrameTable& frames_;
  std::vector<RowSet> sets_;
  std::vector<int64_t> begins_;  // of every set, and the end of the last
  // Tokens of each set. Where none is left out, the row of a token and the token of a row are known
  // without a look.
  struct Span {
    int64_t first = 0, last = -1;
    bool whole = true;
  };
  std::vector<Span> spans_;
  int32_t first_;
  int64_t count_;
};

// Runs of rows that follow each other, of increasing rows.
std::vector<RowRange> ranges_of(std::span<const int32_t> rows);

// Queries as they were before they were turned by their tokens' positions; f32 [count, heads × head
// size] on the host.
std::vector<float> plain_queries(const Context& context, const Memory& memory,
                                 const QueryView& queries);
// The same where the queries are, f32 [count, heads, head size].
Tensor plain_queries_there(const Context& context, const Memory& memory, const QueryView& queries);

// All elements of a tensor that may be strided, f32 or bf16, wherever it lies.
std::vector<float> floats_on_host(const Context& context, ConstTensorView tensor);

// Turns rows [rows, heads, head size] on by a difference of positions each.
void turn_by(const Context& context, const RowLayout& layout, std::span<const Position> differences,
             TensorView rows);

}  // namespace kinora
