// The K/V rows of one session: what a decoder layer appends and attention reads. Tokens are born
// in groups and get consecutive ordinals; every layer holds one row for every token it kept. Keys
// are stored rotated. Rows can be marked and rewound (drafts, cancelled questions) and a group can
// be pruned right after a layer has used it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "base/gpu.h"
#include "memory/growable.h"
#include "memory/token_info.h"

namespace kinora {

struct RowLayout {
  int layers = 0;
  int kv_heads = 0;
  int head_size = 0;
  DType dtype = DType::f32;  // f32 or bf16

  // Bytes of keys and values that one token leaves in all layers.
  int64_t bytes_per_token() const {
    return 2 * dtype_size(dtype) * int64_t{layers} * kv_heads * head_size;
  }
};

class RowStore {
 public:
  // Rows live on `device`; what is known of them (ordinals, modalities, tokens) on the host.
  explicit RowStore(const RowLayout& layout, Device device = Device::cpu());

  const RowLayout& layout() const { return layout_; }
  Device device() const { return device_; }

  // Gives the tokens of a new group their ordinals. Every layer must then append the group before
  // the next one begins. Returns the first ordinal.
  int32_t begin_group(std::span<const TokenInfo> tokens);

  // Room for the newest group's rows in one layer.
  struct NewRows {
    TensorView keys;    // [tokens, kv heads, head size]
    TensorView values;  // the same
  };
  NewRows append(int layer);

  // All rows of one layer; valid until the next append, retain or rewind of that layer.
  RowsView rows(int layer) const;
  int64_t row_count(int layer) const;

  // Of the newest group, keeps in one layer only these rows: indexes into the group, increasing.
  void retain(int layer, std::span<const int32_t> kept);
  // The same for rows on a GPU, with the indexes there too (i32 [kept], from a kernel that is to be
  // trusted). Only starts the work; what the host knows of the rows follows when it is next asked
  // for, which then waits for the GPU to have come so far.
  void retain_there(const Context& context, int layer, const Tensor& kept);

  int64_t token_count() const { return static_cast<int64_t>(tokens_.size()); }
  const TokenInfo& token(int64_t ordinal) const { return tokens_[static_cast<size_t>(ordinal)]; }
  // Ordinals and modalities of the newest group, as queries need them.
  std::span<const int32_t> group_ordinals() const;
  std::span<const Modality> group_modalities() const;

  // A moment to come back to. Marks taken later than the moment rewound to become invalid.
  struct Mark {
    int64_t tokens = 0;
    std::vector<int64_t> rows;  // per layer
  };
  Mark mark() const;
  void rewind(const Mark& mark);

  // Keys and values held now, over all layers.
  int64_t bytes() const;

 private:
  // Indexes of kept rows on their way from the GPU.
  struct Arriving {
    explicit Arriving(Device device) : copied(device) {}
    PinnedBuffer indexes;
    GpuEvent copied;
    size_t first = 0;  // row
    size_t count = 0;  // 0: nothing is on its way
    int32_t group_begin = 0;
  };
  struct Layer {
    std::unique_ptr<Arriving> arriving;  // outlives the rows, whose end waits for the GPU
    Growable keys;
    Growable values;
    std::vector<int32_t> ordinals;
    std::vector<Modality> modalities;
  };
  Layer& layer_at(int layer) const;  // what is known of its rows is complete
  size_t first_of_group(const Layer& layer) const;
  void settle(Layer& layer) const;

  RowLayout layout_;
  Device device_;
  int64_t row_bytes_;
  std::vector<TokenInfo> tokens_;
  int64_t group_begin_ = 0;
  std::vector<int32_t> group_ordinals_;
  std::vector<Modality> group_modalities_;
  mutable std::vector<Layer> layers_;  // what arrives is filled in when it is asked for
};

}  // namespace kinora
