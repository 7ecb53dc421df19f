// Between step_attention.cc, which cuts what decoding steps read into pieces, and piece_cpu.cc,
// which reads one. Private to attention/.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace kinora::attention_cpu {

// A stretch of rows of one kv head, and all queries that read it.
struct Piece {
  DType type = DType::f32;
  const void* keys = nullptr;  // of row 0
  const void* values = nullptr;
  int64_t key_stride = 0;  // elements from row to row
  int64_t value_stride = 0;
  int64_t first = 0;  // the rows [first, first + count), or those that the list names there
  int64_t count = 0;
  const int32_t* list = nullptr;   // or null
  const float* weights = nullptr;  // as in RowSet, in the order of the list; or null
  int64_t head_size = 0;
  float scale = 1;
  // Each [head size]. A result is [piece_stride(head size)]: Σ 2^(s − max) · v over the rows, with
  // s = scale · log2 e · q · k; behind these floats stand max and Σ 2^(s − max).
  std::span<const float* const> queries;
  std::span<float* const> results;
};

// The most queries of a piece.
constexpr int64_t piece_queries = 32;

// Where max and sum stand in a result, and where the next result begins. Whole vectors fit before.
constexpr int64_t piece_width(int64_t head_size) { return (head_size + 15) / 16 * 16; }
constexpr int64_t piece_stride(int64_t head_size) { return piece_width(head_size) + 16; }

// A query's result is the same bits whoever else reads the piece.
void read_piece(const Piece& piece);

// Joins the results of one query over disjoint rows, in their order, into what it attends to:
//   out[c] = Σ_i results[i][c] · 2^(max_i − max) / Σ_i sum_i · 2^(max_i − max)
// results: `count` of them, `stride` floats apart; out: [head size]
void join_pieces(const float* results, int64_t count, int64_t stride, int64_t head_size,
                 float* out);

}  // namespace kinora::attention_cpu
