// Attention of the newest tokens of a batch of sequences, as decoding needs it: every token reads
// the row sets of its own sequence, split over the rows, merged exactly. Nothing but kernel
// launches, so that it can stand in a captured graph and be replayed while sequences grow, come and
// go: what there is to read is looked up on the device.
// The decoder's CUDA step uses it; any other attention goes through a plan (runner.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/attention.h"
#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

constexpr int most_decode_sequences = 64;
constexpr int most_decode_tokens = 64;  // of a batch

// Some rows of one layer. All pointers are to device memory.
struct DeviceRowSet {
  // [rows, kv heads, stored columns] (ops/packed_rows.h), contiguous, aligned to 16 bytes or, in 8
  // bits, to the size of a row or 8 bytes.
  const void* keys = nullptr;
  const void* values = nullptr;
  const int32_t* list = nullptr;  // [count] which rows, in reading order; null: rows 0 … count − 1
  const float* weights = nullptr;  // [count] by place in the set; w adds ln w to a row's score, and
                                   // a row of weight 0 is not read; null: all 1
  float* mass = nullptr;  // what attention the new tokens gave each row is added; null: not wanted
  const int32_t* mass_places = nullptr;  // [count] where in `mass`; null: by place in the set
  uint64_t serves = ~uint64_t{0};        // bit i: the sequence's new token i reads this set
  int64_t count = 0;                     // below 2³⁰
};

constexpr int32_t no_own_rows = -1;

// What one sequence reads in one layer. A table of these, sequences of a layer side by side, lies
// in device memory and is rewritten before a replay, never by a kernel of the stream: the kernels
// before the attention may still run when the table and rows that no list names are read. Only new
// rows, lists and weights may come from them.
struct DeviceSequence {
  DeviceRowSet sets[most_row_sets];  // unused ones have count 0
  int32_t first_token = 0;  // its new tokens are [first_token, first_token + tokens) of the
  int32_t tokens = 0;       // batch; 0: a sequence that is not there
  int32_t own = 0;  // the set whose last `tokens` rows are those of the new tokens themselves; it
                    // has no list and serves all; no_own_rows: there is none
  // Rows of the own set right before the new ones that masks name too, as where a tree grows level
  // by level: bit 0 of a mask is the first of them.
  int32_t earlier = 0;
  // Which new tokens and which heads (as in LayerHeads) count for the mass of rows, and how far
  // apart tokens and heads are added; 0: together.
  int32_t mass_from = 0;  // the sequence's first new token that counts
  uint64_t mass_heads = ~uint64_t{0};
  int64_t mass_token_stride = 0;
  int64_t mass_head_stride = 0;
};

// An RMS norm of every head of queries and keys, before they turn.
struct HeadNorms {
  ConstTensorView query, key;  // [d] f32; undefined: there is none
  float epsilon = 0;
};

// New tokens before their rotation.
struct UnturnedRows {
  ConstTensorView qkv;  // [T, (heads + 2 × kv heads) × d], the queries' type, rows may be strided
  ConstTensorView cos, sin;  // [T, d / 2] f32, contiguous
  // Turned queries go where DecodeAttention::queries points, for add_decode_mass; else nowhere.
  bool keep_queries = false;
  HeadNorms norms = {};
};

// Rows that the tokens of several sequences read alike, as conversations about one video do: they
// are read once for all of them.
struct SharedRows {
  // [count], of this layer, in device memory: tokens that stand side by side in the batch, the rows
  // that all of them read in one set or several, and `own` = no_own_rows. The entries of
  // DecodeAttention::sequences then leave these rows out.
  const DeviceSequence* groups = nullptr;
  int count = 0;  // 1 … 64, those that are not there included; 0: nothing is shared
  int most_tokens_per_group = 1;
};

struct DecodeAttention {
  ConstTensorView queries;  // [T, heads, d] bf16 or f32 on the device: the new tokens of all
                            // sequences, 1 ≤ T ≤ 64
  const DeviceSequence* sequences = nullptr;  // [sequence_count], of this layer, in device memory
  int sequence_count = 1;                     // 1 … 64, those that are not there included
  int most_tokens_per_sequence = 1;           // no sequence has more; decides which kernel runs
  DType row_type = DType::bf16;               // or f32, i8, u8
  int kv_heads = 1;
  int splits = 1;           // as decode_splits says; part of what a graph has captured
  void* scratch = nullptr;  // decode_scratch_bytes, 256-byte aligned, zeroed once before its first
                            // use; every call leaves it ready for the next, and calls that share it
                            // must be ordered
  float scale = 1;
  TensorView out;  // [T, heads, d], bf16 or f32; tokens of no sequence are left alone
  // [T] in device memory: bit j of mask i says that token i of the batch reads new token j of its
  // sequence, those of DeviceSequence::earlier counted in. Older rows are read by all that their
  // set serves.
  const uint64_t* masks = nullptr;
  // The softmax state of every token and head, as in runner.h (natural units); null: not wanted.
  float* state_max = nullptr;  // [T, heads]
  float* state_sum = nullptr;
  // Where decode_turns says so: norms and turns queries and keys, writes the new rows and does not
  // read what `queries` points at.
  UnturnedRows unturned = {};
  // Only where decode_shares says so. Turned queries are then kept in `queries` in any case.
  SharedRows shared = {};
};

// Whether decode_attention can take such work with unturned rows.
bool decode_turns(const Context& context, const DecodeAttention& work);

// Whether decode_attention can read rows once for several sequences of such work.
bool decode_shares(const Context& context, const DecodeAttention& work);

// How many parts the rows of all sequences together, up to `most_rows`, are split into to keep the
// device busy. A part may reach over several sequences, so lengths may differ as they like.
int decode_splits(const Context& context, int kv_heads, int64_t most_rows);

// Scratch memory for such work: shapes, kv heads, splits, most tokens per sequence, what is shared.
size_t decode_scratch_bytes(const Context& context, const DecodeAttention& work);

void decode_attention(const Context& context, const DecodeAttention& work);

// Fills DeviceRowSet::mass where it is wanted, in one launch for several layers of one shape:
// decode_attention has run for each of them, and its queries and softmax state are still there.
// Nothing else waits for this, so a step does it last.
void add_decode_mass(const Context& context, std::span<const DecodeAttention> layers);

}  // namespace kinora
