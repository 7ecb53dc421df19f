// Attention of the newest few tokens over all rows of a layer, as decoding needs it: split over the
// rows, merged exactly, and nothing but kernel launches, so that it can stand in a captured graph
// and be replayed while memory grows: how many rows there are is read on the device.
// The decoder's CUDA step uses it; any other attention goes through a plan (runner.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

// Lies in device memory, one a layer; rewritten before a replay, never by the kernel before the
// attention: that one may still run when this and the older rows are read.
struct LayerRows {
  const void* keys = nullptr;  // [rows, kv heads, d], contiguous, 16-byte aligned
  const void* values = nullptr;
  int64_t rows = 0;  // the new ones included
};

// New tokens before their rotation.
struct UnturnedRows {
  ConstTensorView qkv;  // [m, (heads + 2 × kv heads) × d], the queries' type, rows may be strided
  ConstTensorView cos, sin;  // [m, d / 2] f32, contiguous
};

struct DecodeAttention {
  ConstTensorView queries;  // [m, heads, d] bf16 or f32 on the device: the newest m tokens, whose
                            // own keys and values are the last m rows; 1 ≤ m ≤ 64
  const LayerRows* layer = nullptr;  // in device memory
  DType row_type = DType::bf16;      // or f32
  int kv_heads = 1;
  int splits = 1;           // as decode_splits says; part of what a graph has captured
  void* scratch = nullptr;  // decode_scratch_bytes, 256-byte aligned, zeroed once before its first
                            // use; every call leaves it ready for the next, and calls that share it
                            // must be ordered
  float scale = 1;
  TensorView out;  // [m, heads, d], the queries' type
  // Optional, [m] in device memory: bit j of mask i says that new token i reads new token j. All
  // read all older rows. Null: causal.
  const uint64_t* tree_mask = nullptr;
  // Where decode_turns says so: turns queries and keys, writes the new rows and does not read what
  // `queries` points at.
  UnturnedRows unturned = {};
};

// Whether decode_attention can take such work with unturned rows.
bool decode_turns(const Context& context, const DecodeAttention& work);

// How many parts rows are split into to keep the device busy with up to `most_rows` rows.
int decode_splits(const Context& context, int kv_heads, int64_t most_rows);
size_t decode_scratch_bytes(int64_t tokens, int64_t heads, int64_t head_size, int splits);

void decode_attention(const Context& context, const DecodeAttention& work);

}  // namespace kinora
