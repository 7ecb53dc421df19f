// A memory that keeps all rows and lets a question read only some of them: text always, frames as a
// RowChooser says. What was chosen is copied to one place, once for each question and layer, and
// tokens of the answer read the same. While frames are read in, they see all earlier frames or a
// window of them. Rows stay in time order in the memory below, which also marks, rewinds and forks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/policy/settings.h"
#include "memory/flat_memory.h"
#include "memory/memory.h"
#include "memory/partial/frame_table.h"
#include "memory/partial/row_chooser.h"
#include "memory/policies.h"

namespace kinora {

// Where rows stand that are read: where they were read in, or right before their reader.
enum class Placing : uint8_t { original, consecutive };

struct PartialOptions {
  int64_t rows = 8192;  // of frames that a question reads in a layer, at most
  int64_t window = 0;   // of earlier frames that new frames read; 0: all
  RowTiers tiers = {};  // where older rows wait
  Placing positions = Placing::original;
  bool ahead = true;  // pages of a file that the next layer will probably want are read early
};

// The settings that all of these memories have.
void add_rows(Settings<PartialOptions>& settings);
void add_window(Settings<PartialOptions>& settings);
void add_tiers(Settings<PartialOptions>& settings);
// The rows of such a memory: all of them, as the options say.
std::unique_ptr<Memory> rows_of(const MemoryOptions& options, const PartialOptions& reading);
void add_positions(Settings<PartialOptions>& settings);

class PartialMemory final : public Memory {
 public:
  PartialMemory(std::unique_ptr<Memory> all, std::unique_ptr<RowChooser> chooser,
                const PartialOptions& options);

  const RowLayout& layout() const override { return all_->layout(); }
  Device device() const override { return all_->device(); }
  bool needs_question() const override { return all_->needs_question(); }
  bool prunes_frames() const override { return all_->prunes_frames(); }
  int64_t kept_of(int64_t visual) const override { return all_->kept_of(visual); }
  void set_kept_share(double share) override { all_->set_kept_share(share); }
  bool known_ahead() const override;
  bool reads_near() const override {
    return options_.positions == Placing::consecutive && options_.window > 0;
  }

  std::span<const Position> begin(const Context& context, const MemoryGroup& group) override;
  NewRows append(int layer) override { return all_->append(layer); }
  QueryView queries() const override { return all_->queries(); }
  void read(const Context& context, int layer, const QueryView& queries,
            std::vector<RowSet>& out) override;
  void after(const Context& context, int layer, const QueryView& queries) override;
  void accept(const Context& context, std::span<const int32_t> tokens) override;
  TensorView state(int layer, int32_t node) override { return all_->state(layer, node); }

  MemoryMark mark() const override;
  void rewind(const MemoryMark& mark) override;
  std::unique_ptr<Memory> fork(const MemoryMark& mark) override;

  using Memory::save;
  void save(const MemoryMark& mark, ArchiveWriter& out, const RowGroups& groups) const override;
  void load(const Context& context, const std::shared_ptr<const Archive>& in, Loading how) override;
  void fetch(const Context& context, int layer, std::span<const RowRange> rows) const override {
    all_->fetch(context, layer, rows);
  }
  FetchCounts fetched() const override { return all_->fetched(); }

  int64_t token_count() const override { return all_->token_count(); }
  const TokenInfo& token(int64_t ordinal) const override { return all_->token(ordinal); }
  int64_t row_count(int layer) const override { return all_->row_count(layer); }
  MemoryBytes bytes() const override;

 private:
  // Rows of a layer that were copied for a reader. Never changed once it is shared.
  struct Fetched {
    struct Part {
      Tensor keys, values, weights;
      std::vector<int32_t> ordinals;
      std::vector<Modality> modalities;
      std::vector<float> times;

      void describe(std::vector<int32_t> tokens, std::span<const TokenInfo> known);
      RowSet view() const;
      int64_t bytes() const;
    };
    Part rows, stand_ins;
    int64_t end = 0;  // rows of the layer before this one were chosen among; later ones are read
  };
  using Copies = std::vector<std::shared_ptr<const Fetched>>;  // by layer
  struct Saved {
    std::shared_ptr<const void> all, chooser;
    Copies question;
  };

  void judge_reading_ahead(int layer, const FetchCounts& before);
  void read_ahead(const Context& context, int layer);
  std::shared_ptr<const Fetched> fetch(const Context& context, const StoredRows& rows,
                                       const FrameRows& frames) const;
  std::shared_ptr<const Fetched> extend(const Context& context, const StoredRows& rows,
                                        const Fetched& old) const;
  static const Saved& saved_of(const MemoryMark& mark);
  static MemoryMark inner_mark(const MemoryMark& mark);
  void restore(const MemoryMark& mark);

  std::unique_ptr<Memory> all_;
  int ahead_layer_ = -1;  // that rows were last read for before it asked
  int ahead_rest_ = 0;    // layers for which nothing is read ahead
  std::unique_ptr<RowChooser> chooser_;
  PartialOptions options_;
  FrameTable frames_;
  // Of the newest group.
  int64_t first_ = 0;       // its first token
  bool visual_ = false;     // it has frames
  bool fits_ = true;        // it reads all there is …
  bool everything_ = true;  // … where it is
  bool continues_ = false;  // it reads what the question before it was given

  Copies question_;  // what the newest question was given; null: it read everything
  Copies reading_;   // what the newest group was given
};

}  // namespace kinora
