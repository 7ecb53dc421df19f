// How much attention some tokens, those of an answer, gave each row of memory: Σ over tokens and
// over chosen heads of chosen layers of the row's share of their attention. A sequence brings one
// along (model/decoder/decoder.h), whoever runs it adds to it, and the engine reads from it what an
// answer rests on. Rows are told apart by the ordinals of their tokens, so the numbers stay what
// they are while rows are added, pruned or shared with forks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "attention/attention.h"
#include "base/context.h"
#include "base/gpu.h"
#include "base/tensor.h"

namespace kinora {

constexpr uint64_t all_heads = ~uint64_t{0};

// Some query heads of a layer. Bit h: head h. Of more than 64 heads all or some of the first 64.
struct LayerHeads {
  int layer = 0;
  uint64_t heads = all_heads;

  bool has(int64_t head) const {
    return heads == all_heads || (head < 64 && (heads >> head & 1) != 0);
  }
};

// Where the mass of a group is added, on the device that computes it.
struct MassTarget {
  float* first = nullptr;    // of ordinal 0; others follow in order
  int64_t token_stride = 0;  // 0: all tokens of the group together
  int64_t head_stride = 0;   // 0: all heads together
};

class RowMass {
 public:
  // `layers` in order. With `by_head` every head of the model has numbers of its own, of which only
  // those of the chosen ones are ever above 0.
  RowMass(Device device, std::vector<LayerHeads> layers, int64_t heads, bool by_head = false);

  Device device() const { return device_; }
  const std::vector<LayerHeads>& layers() const { return layers_; }
  const LayerHeads* find(int layer) const;  // null: the layer is not asked for

  // For whoever runs a group: its queries, of which only the ordinals and parents are looked at.
  // What a token tree gives waits for `accept`; a chain counts at once.
  void begin(const Context& context, const QueryView& group);
  MassTarget target(int layer) const;
  // Ordinals of a row set in device memory, for kernels; null where they follow one another. Copied
  // once, then only what is new.
  const int32_t* places(const Context& context, int layer, size_t set,
                        std::span<const int32_t> ordinals);

  // Of the newest group, a tree, only these tokens count (as in Memory::accept); they get the
  // ordinals of a chain.
  void accept(const Context& context, std::span<const int32_t> tokens);

  // Per ordinal, [rows()] or with `by_head` [layers asked for, heads, rows()]. Waits for the
  // device.
  std::vector<float> values(const Context& context) const;
  int64_t rows() const { return rows_; }

 private:
  // A list of ordinals on the device. The host's copy is only appended to while it is read.
  struct Places {
    int64_t known = 0;
    PinnedBuffer host;
    Tensor there;
    std::unique_ptr<GpuEvent> copied;
  };

  int64_t planes() const;
  void grow(const Context& context, int64_t rows);

  Device device_;
  std::vector<LayerHeads> layers_;
  int64_t heads_;
  bool by_head_;
  int64_t rows_ = 0;
  Tensor total_;        // [planes, capacity] f32
  Tensor waiting_;      // [tokens, planes, capacity] f32, of a tree
  int64_t tokens_ = 0;  // of the tree that waits; 0: none
  int64_t group_begin_ = 0;
  std::map<std::pair<int, size_t>, Places> places_;  // by layer and set
};

// What the last `counted` queries gave the rows of these sets, whatever else computes their
// attention: every query is taken to read all rows that it may. `layer` is one that was asked for;
// the group has begun.
void add_mass(const Context& context, int layer, const QueryView& queries,
              std::span<const RowSet> sets, float scale, int64_t counted, RowMass& mass);

}  // namespace kinora
