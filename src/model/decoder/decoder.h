// The decoder shared by every family: RMS norm, grouped-query attention with rotary positions
// (plain, llama3-scaled or M-RoPE), SwiGLU, and a tied or untied head. Knows nothing of pictures:
// what goes in is tokens or embeddings with their positions. Weights only: rows belong to the
// sequences' memories, working space to whoever makes a runner.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "attention/row_mass.h"
#include "base/cancel.h"
#include "base/context.h"
#include "base/tensor.h"
#include "memory/memory.h"

namespace kinora {

class AttentionObserver;
class DecoderLayers;

// What some tokens bring besides their embeddings (DeepStack): level l is added to their hidden
// rows after layer l.
struct DeepRows {
  std::vector<int32_t> tokens;  // of the sequence, increasing
  Tensor values;                // f32 [tokens, levels × hidden] on the runner's device
};

// Tokens of one session on their way through the decoder: a prefill group of any length, a token to
// continue from, or a tree of drafted ones.
struct Sequence {
  std::vector<int32_t> ids;  // one per token, or …
  Tensor embeddings;         // … f32 [tokens, hidden] on the runner's device
  Tensor beside;             // the same, where DecoderConfig::beside wants a second row of each
  DeepRows deep;             // of visual tokens; most models have none
  std::vector<TokenInfo> tokens;  // one per row; modalities may be mixed
  std::vector<int32_t> parents;   // a token tree, as in QueryView; empty: a chain
  int64_t probes = 0;             // of the last rows, as in MemoryGroup
  Memory* memory = nullptr;
  Attention* attention = nullptr;
  AttentionObserver* observer = nullptr;  // shown every layer's attention; null: nobody looks on
  int64_t hidden_rows = 1;                // how many of the last rows are wanted back
  std::vector<int> states;                // layers whose output is wanted, increasing
  std::vector<int32_t> state_rows;        // of these tokens, increasing; empty: of all
  // What attention the last `mass_rows` rows (0: all) give the rows of memory is added here; null:
  // nobody wants to know. The memory's newest rows are the last of its last row set then. After a
  // failure the numbers mean nothing.
  RowMass* mass = nullptr;
  int64_t mass_rows = 0;
  CancelToken cancel;

  int64_t count() const { return static_cast<int64_t>(tokens.size()); }
  int64_t mass_count() const { return mass_rows == 0 ? count() : mass_rows; }
};

// What a sequence gets back. After a failure its memory is as it was before.
struct Forwarded {
  Tensor hidden;               // f32 [hidden_rows, hidden], after the final norm
  std::vector<Tensor> states;  // f32 [tokens or state_rows, hidden], one for each layer asked for
  bool usual = true;           // false: the batch took longer than its like will, as a graph was
                               // made for it
  std::exception_ptr failure;
};

// Runs batches, and owns the scratch space and captured graphs for that. Used by one thread at a
// time.
class DecoderRunner {
 public:
  virtual ~DecoderRunner() = default;
  // Every sequence has its own memory. A sequence that fails or is cancelled does not affect the
  // others; a failure of the whole batch is thrown.
  virtual std::vector<Forwarded> forward(std::span<const Sequence> batch) = 0;

  // One sequence alone; throws its failure.
  Forwarded forward(const Sequence& sequence);
};

class Decoder {
 public:
  virtual ~Decoder() = default;

  virtual int64_t hidden_size() const = 0;
  virtual int64_t vocabulary() const = 0;
  virtual int layer_count() const = 0;

  // Token ids → embeddings [ids, hidden], f32.
  virtual Tensor embed(const Context& context, std::span<const int32_t> ids) const = 0;
  virtual std::unique_ptr<DecoderRunner> runner(const Context& context) const = 0;
  // Rows as the last layer gives them → rows after the final norm, f32.
  virtual Tensor norm(const Context& context, ConstTensorView rows) const = 0;
  // Hidden rows (after the final norm) → logits f32 [rows, vocabulary].
  virtual Tensor logits(const Context& context, ConstTensorView hidden) const = 0;
  // Its weights, for whoever puts its table and head into a captured graph; null: there are none.
  virtual const DecoderLayers* layers() const { return nullptr; }
};

}  // namespace kinora
