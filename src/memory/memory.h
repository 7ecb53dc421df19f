// What a session remembers: the K/V rows of its tokens, which of them a layer's attention reads,
// and what happens to them afterwards. The decoder drives it layer by layer:
//
//   begin(group) → for every layer: append → read → attention → after → the next group
//
// FlatMemory keeps every row, or prunes groups of frames; other memories cluster rows, fetch them
// from elsewhere or keep a fixed number. A memory belongs to one session and is used by one thread
// at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "base/context.h"
#include "memory/token_info.h"
#include "ops/packed_rows.h"

namespace kinora {

class Archive;
class ArchiveWriter;

// How keys are turned by their position: column i of a head's first half, with its partner in the
// second, by number axes[i] of the position, at frequencies[i].
struct RotaryColumns {
  std::vector<double> frequencies;
  std::vector<int32_t> axes;
};

// Rows of all layers, as a model needs them.
struct RowLayout {
  int layers = 0;
  int kv_heads = 0;
  int head_size = 0;
  DType dtype = DType::f32;  // what rows are kept in (ops/packed_rows.h)
  // Hybrid models: layers that keep a state of this many bytes instead of rows; 0, or no entry:
  // rows.
  std::vector<int64_t> state_bytes = {};
  RotaryColumns rotary = {};  // empty: not known, and nobody may move keys

  int64_t bytes_of_state(int layer) const {
    const auto place = static_cast<size_t>(layer);
    return place < state_bytes.size() ? state_bytes[place] : 0;
  }
  // Keys or values of some rows of a layer, as they are kept.
  Shape shape(int64_t rows) const { return {rows, kv_heads, stored_columns(dtype, head_size)}; }
  // Bytes of the keys, or of the values, of one row of a layer.
  int64_t row_bytes() const {
    return dtype_size(dtype) * kv_heads * stored_columns(dtype, head_size);
  }
  // Bytes of keys and values that one token leaves in all layers.
  int64_t bytes_per_token() const {
    int64_t with_rows = layers;
    for (const int64_t bytes : state_bytes) with_rows -= bytes > 0;
    return 2 * with_rows * row_bytes();
  }
};

// How keys are to be stored: turned by their position, or as the projection gives them, for a
// memory that turns them when they are read.
enum class KeyForm : uint8_t { rotated, unrotated };

// Tokens that are about to be computed together.
struct MemoryGroup {
  std::span<const TokenInfo> tokens;
  std::span<const int32_t> parents = {};  // a token tree, as in QueryView; empty: a chain
  // The last rows are only probes: they help choose which others stay, and are not kept.
  int64_t probes = 0;
  // f32 [tokens, hidden]: what the decoder begins with, where it is given embeddings and not ids.
  ConstTensorView embeddings = {};
};

// Room for the group's rows in one layer.
struct NewRows {
  TensorView keys;    // [tokens, kv heads, stored columns]
  TensorView values;  // the same
};

// Where rows are stored, in bytes. Every fork includes the rows it shares with others.
struct MemoryBytes {
  int64_t device = 0;
  int64_t host = 0;
  int64_t disk = 0;
  int64_t shared = 0;  // of the above, held together with forks

  int64_t total() const { return device + host + disk; }
  int64_t held() const { return device + host; }  // of what a budget limits
};

// A moment to come back to. Marks taken later than the moment rewound to become invalid.
struct MemoryMark {
  int64_t tokens = 0;
  std::vector<int64_t> rows;         // per layer
  std::shared_ptr<const void> more;  // what only the memory that made it understands
};

// For a layer, by token: the group that its row belongs to. None: −1, or no number at all.
using RowGroups = std::function<std::vector<int32_t>(int layer)>;

// How rows of a saved file come into memory: all at once, or when they are first read.
enum class Loading : uint8_t { whole, lazily };

// Bytes of a file that rows wait in, page by page, which were asked for.
struct FetchCounts {
  int64_t wanted = 0;
  int64_t late = 0;  // of these: read then, because they were not in memory
};

// Rows [begin, end) of a layer.
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
};

class Memory {
 public:
  virtual ~Memory() = default;

  virtual const RowLayout& layout() const = 0;
  virtual Device device() const = 0;
  virtual KeyForm key_form() const { return KeyForm::rotated; }
  // A rule of this memory looks at the question while frames are read: groups of frames should end
  // with the question's tokens as probes.
  virtual bool needs_question() const { return false; }
  // Groups of frames are pruned one by one: each should be a separate prefill group.
  virtual bool prunes_frames() const { return false; }
  // The number of rows that `visual` tokens of a group of frames leave.
  virtual int64_t kept_of(int64_t visual) const { return visual; }
  // This share of every future group of frames stays, if frames are pruned at all.
  virtual void set_kept_share(double share) { (void)share; }
  // True if the rows that the newest group reads do not depend on its queries and nothing happens
  // after a layer: all layers may then be appended and read at once, before anything is computed,
  // and `read` is called without queries. Asked after `begin`.
  virtual bool known_ahead() const { return false; }
  // Whatever is read stands close before its reader, however long the session lasts: positions may
  // then pass the largest that the model was made for.
  virtual bool reads_near() const { return false; }

  // Gives the tokens of a new group their ordinals and positions. Every layer then appends the
  // group before the next one begins. Returns the positions that queries and keys are turned by;
  // valid until the next call.
  virtual std::span<const Position> begin(const Context& context, const MemoryGroup& group) = 0;
  virtual NewRows append(int layer) = 0;
  // The newest group as queries need it; its queries are the caller's to fill in.
  virtual QueryView queries() const = 0;
  // Adds to `out` the row sets that these queries read; disjoint sets, at most most_row_sets. Valid
  // until the layer is next appended to, pruned or rewound.
  virtual void read(const Context& context, int layer, const QueryView& queries,
                    std::vector<RowSet>& out) = 0;
  // The layer's attention has used the group: the place for pruning, clustering, prefetching.
  virtual void after(const Context& context, int layer, const QueryView& queries) {
    (void)context, (void)layer, (void)queries;
  }
  // Reduces the newest group, which every layer has, to these tokens (places in the group,
  // increasing), as if there had been no others: the accepted path of a token tree.
  virtual void accept(const Context& context, std::span<const int32_t> tokens) = 0;

  // The state of a layer that keeps one, u8 [bytes]; for a token tree that of the node, which
  // begins as a copy of its parent's. `node` −1: the state before the group.
  virtual TensorView state(int layer, int32_t node = -1) = 0;

  virtual MemoryMark mark() const = 0;
  virtual void rewind(const MemoryMark& mark) = 0;
  // Another memory that begins with all rows before the mark. They are stored once: neither side
  // changes them any more, and each continues independently. Between groups only.
  virtual std::unique_ptr<Memory> fork(const MemoryMark& mark) = 0;

  // Writes all that was there at the mark, for `load` of a memory that is made alike. Between
  // groups only; throws unsupported where it cannot.
  void save(const MemoryMark& mark, ArchiveWriter& out) const { save(mark, out, nullptr); }
  // The same with rows of a group side by side in the file, where these are read together.
  virtual void save(const MemoryMark& mark, ArchiveWriter& out, const RowGroups& groups) const;
  // Becomes what was saved; an empty memory only. What the file says is checked before it is used,
  // rows that come later when they come.
  virtual void load(const Context& context, const std::shared_ptr<const Archive>& in, Loading how);
  // For a memory some of whose rows wait in a file: these are about to be looked at. What `read`
  // gives of other rows has no meaning.
  virtual void fetch(const Context& context, int layer, std::span<const RowRange> rows) const {
    (void)context, (void)layer, (void)rows;
  }
  // False if rows that `read` gives lie elsewhere than on the memory's device: a reader copies
  // them.
  virtual bool all_here() const { return true; }

  virtual int64_t token_count() const = 0;
  virtual const TokenInfo& token(int64_t ordinal) const = 0;
  virtual int64_t row_count(int layer) const = 0;
  virtual MemoryBytes bytes() const = 0;

  // These rows will probably be looked at soon: starts to read those that wait in a file, beside
  // everything else. False if there are none.
  virtual bool fetch_ahead(const Context& context, int layer,
                           std::span<const RowRange> rows) const {
    (void)context, (void)layer, (void)rows;
    return false;
  }
  // What `fetch` has found so far of rows that had been written to a file.
  virtual FetchCounts fetched() const { return {}; }
};

}  // namespace kinora
