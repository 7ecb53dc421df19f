// The decoder shared by every family: RMS norm, grouped-query attention with rotary positions
// (plain, llama3-scaled or M-RoPE), SwiGLU, and a tied or untied head. Knows nothing of pictures:
// a group is any run of embeddings with their tokens. Weights only; rows belong to the session.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "base/cancel.h"
#include "base/context.h"
#include "base/tensor.h"
#include "memory/row_store.h"

namespace kinora {

// Tokens on their way into the decoder; modalities may be mixed.
struct TokenGroup {
  Tensor embeddings;              // f32 [tokens, hidden]
  std::vector<TokenInfo> tokens;  // one per row
};

struct PrefillOptions {
  int64_t hidden_rows = 1;  // how many of the last rows are wanted back
  CancelToken cancel;
  // Called after every layer with the residual stream [tokens, hidden] (tests, inspection).
  std::function<void(int layer, ConstTensorView hidden)> after_layer;
  // Called after a layer's attention has used the group: the place where pruning happens.
  std::function<void(int layer, RowStore& store)> after_attention;
};

class Decoder {
 public:
  virtual ~Decoder() = default;

  virtual int64_t hidden_size() const = 0;
  virtual int64_t vocabulary() const = 0;

  // Token ids → embeddings [ids, hidden], f32.
  virtual Tensor embed(const Context& context, std::span<const int32_t> ids) const = 0;

  // Runs a group through all layers, adding its rows to the store. Returns the last hidden rows
  // after the final norm, f32 [hidden_rows, hidden]. On any exception the store is rewound to
  // where it was.
  virtual Tensor prefill(const Context& context, const TokenGroup& group, RowStore& store,
                         Attention& attention, const PrefillOptions& options) const = 0;

  // Hidden rows (after the final norm) → logits f32 [rows, vocabulary].
  virtual Tensor logits(const Context& context, ConstTensorView hidden) const = 0;
};

}  // namespace kinora
