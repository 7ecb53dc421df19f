// The plain memory: every layer keeps its rows one after another in the order of their tokens.
// Groups of frames may be pruned as soon as a layer has used them (retention/retention.h). Rows
// before a fork are stored once and never change again; later rows belong to one side only.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <span>
#include <vector>

#include "base/gpu.h"
#include "memory/growable.h"
#include "memory/memory.h"
#include "memory/retention/retention.h"
#include "memory/row_file.h"
#include "memory/saved_bytes.h"
#include "memory/token_list.h"

namespace kinora {

// About how many rows of a layer stay where; 0: all of them. Half are the newest. Older rows of a
// GPU wait in the computer's memory, and older rows of that in a file.
struct RowTiers {
  int64_t gpu = 0;   // without effect on a CPU
  int64_t host = 0;  // on a GPU: of those that have left it
};

class FlatMemory final : public Memory {
 public:
  // Rows live on `device`; what is known of them (ordinals, modalities, tokens) on the host. Rows
  // that wait elsewhere are for an owner that fetches what it reads, and copies what is not here.
  explicit FlatMemory(const RowLayout& layout, Device device = Device::cpu(),
                      const Retention& retention = {}, RowTiers tiers = {});

  const RowLayout& layout() const override { return layout_; }
  Device device() const override { return device_; }
  bool needs_question() const override { return retention_.needs_question(); }
  bool prunes_frames() const override { return retention_.prunes(); }
  int64_t kept_of(int64_t visual) const override { return kept_count(retention_, visual); }
  void set_kept_share(double share) override { retention_.ratio = share; }
  bool known_ahead() const override { return !prunes_group(); }

  std::span<const Position> begin(const Context& context, const MemoryGroup& group) override;
  NewRows append(int layer) override;
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
  void fetch(const Context& context, int layer, std::span<const RowRange> rows) const override;
  bool fetch_ahead(const Context& context, int layer,
                   std::span<const RowRange> rows) const override;
  FetchCounts fetched() const override { return fetched_; }

  int64_t token_count() const override { return static_cast<int64_t>(tokens_.size()) - probes_; }
  const TokenInfo& token(int64_t ordinal) const override {
    return tokens_[static_cast<size_t>(ordinal)];
  }
  int64_t row_count(int layer) const override;
  MemoryBytes bytes() const override;
  bool all_here() const override;

  // Of the newest group, keeps in one layer only these rows: places in the group, increasing.
  void retain(int layer, std::span<const int32_t> kept);
  // The same for rows on a GPU, with the places on the GPU too (i32 [kept], written by a trusted
  // kernel). Only starts the work. What the host knows of the rows is updated when it is next asked
  // for; that call then waits for the GPU to get this far.
  void retain_there(const Context& context, int layer, const Tensor& kept);

 private:
  // Rows that have left a GPU, one after another. Blocks of several forks may have its first rows,
  // and whoever has all of them may append more.
  struct HostRows {
    Growable keys, values;
    int64_t rows = 0;
    int64_t next = 0;                  // rows that will probably come next …
    std::shared_future<void> growing;  // … for which memory is being made, which takes long

    ~HostRows() { wait(); }
    void wait() const {
      if (growing.valid()) growing.wait();
    }
  };
  // Rows that lie together: made here, moved to the host, or read from a file. The last two never
  // change.
  struct Block {
    Growable keys;
    Growable values;
    std::shared_ptr<HostRows> host;
    std::unique_ptr<SavedBytes> saved_keys, saved_values;
    std::vector<RowFile::Page> key_pages, value_pages;  // where they wait, if it is in a RowFile
    std::vector<int32_t> ordinals;
    std::vector<Modality> modalities;
    std::vector<float> times;

    int64_t rows() const { return static_cast<int64_t>(ordinals.size()); }
    Device device() const { return host || saved_keys ? Device::cpu() : keys.device(); }
    const std::byte* key_bytes() const {
      return saved_keys ? saved_keys->data() : host ? host->keys.data() : keys.data();
    }
    const std::byte* value_bytes() const {
      return saved_values ? saved_values->data() : host ? host->values.data() : values.data();
    }
    // The first rows of another block, as what is known of them, behind this one's.
    void describe(const Block& from, int64_t first, int64_t count);
    void forget_first(int64_t count);  // what is known of them
  };
  // The first `rows` rows of a block. Blocks before the last are shared and never written; the
  // last one is the memory's own unless `frozen`.
  struct Part {
    std::shared_ptr<Block> block;
    int64_t rows = 0;
    bool frozen = false;
  };
  // Places of kept rows being copied from the GPU.
  struct Arriving {
    explicit Arriving(Device device) : copied(device) {}
    PinnedBuffer places;
    GpuEvent copied;
    size_t first = 0;  // row of the own block
    size_t count = 0;  // 0: no copy is pending
    int32_t group_begin = 0;
  };
  struct Layer {
    std::unique_ptr<Arriving> arriving;  // outlives the rows, whose end waits for the GPU
    std::vector<Part> parts;
    std::shared_ptr<Tensor> state;  // of a layer without rows; replaced, never changed, once shared
    bool state_shared = false;
    std::vector<Tensor> nodes;  // states of the newest group's tree nodes; undefined until used
  };
  struct States {
    std::vector<std::shared_ptr<Tensor>> layers;
  };

  bool prunes_group() const;
  bool keeps_state(int layer) const { return layout_.bytes_of_state(layer) > 0; }
  std::shared_ptr<Block> new_block(int64_t likely_rows = 0) const;
  Block& own_block(Layer& layer);
  Layer& layer_at(int layer) const;  // what is known of its rows is complete
  void settle(Layer& layer) const;
  int64_t first_of_group(const Block& block) const;
  int64_t keep_known(Layer& layer, std::span<const int32_t> kept);
  void resize(Part& part, int64_t rows);
  void cut(Layer& layer, int64_t rows);
  void freeze(Layer& layer);
  void join(Layer& layer, size_t first);
  void forget_probes();
  void prune(const Context& context, int layer, const QueryView& queries);
  void need(const Part& part, int64_t begin, int64_t end) const;
  // Bytes of rows of a layer that wait in files.
  struct Waiting {
    std::shared_ptr<Block> block;
    std::vector<SavedBytes::Range> ranges;  // of keys, and of values
  };
  std::vector<Waiting> waiting_rows(int layer, std::span<const RowRange> rows) const;
  static void announce(const ThreadPool& threads, std::span<const Waiting> all);
  // flat_memory_old_rows.cc
  void put_away(Layer& layer, bool frames);
  void leave_gpu(Layer& layer, int64_t most);
  void make_room_ahead();
  void write_oldest(Layer& layer, size_t place);
  void give_up(const Part& part) const;
  std::unique_ptr<SavedBytes> waiting(const std::vector<RowFile::Page>& pages) const;

  RowLayout layout_;
  Device device_;
  Retention retention_;
  int64_t row_bytes_;
  RowTiers tiers_;
  std::shared_ptr<RowFile> file_;  // of old rows; made when there are some
  TokenList tokens_;
  int64_t group_begin_ = 0;
  int64_t probes_ = 0;
  bool visual_ = false;  // the newest group has rows that are not text
  std::vector<Position> positions_;
  std::vector<int32_t> parents_;
  std::vector<int32_t> group_ordinals_;
  std::vector<Modality> group_modalities_;
  mutable std::vector<Layer> layers_;  // what arrives is filled in when it is asked for
  mutable FetchCounts fetched_;
  mutable int ahead_layer_ = -1;     // whose rows are being read ahead
  mutable std::future<void> ahead_;  // the last member: its end waits for the work
};

}  // namespace kinora
