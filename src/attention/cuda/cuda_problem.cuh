// What all attention kernels share: the arguments of a run, the walk along a job's list, how masked
// keys are found, and how a finished row is written or merged.
#pragma once

#include <cuda_bf16.h>

#include "attention/cuda/cuda_plan.h"

namespace kinora::cuda_attention {

// Where rows of the output and their softmax state go.
struct Output {
  void* out = nullptr;
  int64_t stride = 0;  // in elements
  int64_t head_stride = 0;
  float* max = nullptr;  // [queries, heads], both or neither
  float* sum = nullptr;
  int32_t heads = 1;
  bool f32 = false;
  bool merge = false;  // it holds an earlier pass; needs the state
};

// Results of jobs that were split over their keys.
struct Parts {
  float* out = nullptr;  // [partial rows, head size], normalised
  float* max = nullptr;  // [partial rows]
  float* sum = nullptr;
};

struct Problem {
  CudaPlanView plan;
  const void* queries = nullptr;
  int64_t query_stride = 0;  // in elements
  int64_t query_head_stride = 0;
  const void* keys = nullptr;
  int64_t key_stride = 0;
  int64_t key_head_stride = 0;
  const void* values = nullptr;
  int64_t value_stride = 0;
  int64_t value_head_stride = 0;
  const float* weights = nullptr;  // [rows]: w adds ln w to a row's score; null: all 1
  Output target;
  Parts parts;
  // MOMO's measuring pass: log2 Σ 2^(score · log2 e) of every 32 keys of a list goes to
  // scores[(query · heads + head) · score_stride + block]; null: nothing is measured.
  float* scores = nullptr;
  int64_t score_stride = 0;
  float scale = 1;
  int32_t group = 1;  // heads of a kv head
  int32_t head_size = 0;
  bool queries_f32 = false;
  bool rows_f32 = false;
};

// Query and head of a row of a job, and the first key row that it must not read.
struct RowPlace {
  int32_t query;
  int32_t head;
  int32_t limit;
};

__device__ inline RowPlace find_row(const CudaPlanView& plan, const CudaJob& job, int row) {
  const int64_t at = job.row_begin + row;
  int64_t step = at;
  if (job.heads > 1) {  // dividing 32 bits is much cheaper
    step = at >> 32 == 0
               ? static_cast<int64_t>(static_cast<uint32_t>(at) / static_cast<uint32_t>(job.heads))
               : at / job.heads;
  }
  const int64_t query = job.listed ? plan.queries[job.query_begin + step] : job.query_begin + step;
  return {static_cast<int32_t>(query), job.head + static_cast<int32_t>(at - step * job.heads),
          plan.limit(query) - job.back};
}

// How keys of a block are hidden.
enum BlockKind : int32_t { block_full = 0, block_limited = 1, block_listed = 2 };

struct BlockInfo {
  int32_t kind;
  int32_t begin;  // affine: the key of column 0
  int32_t stride;
  int32_t full;   // columns before this one are for all
  int32_t valid;  // columns that hold a key

  // Affine: the first column that a row with this limit does not read.
  __device__ int32_t end_for(int32_t limit) const {
    const int32_t distance = limit - begin;
    int32_t seen = 0;
    if (distance > 0) seen = stride == 1 ? distance : (distance + stride - 1) / stride;
    return min(max(seen, full), valid);
  }
};

// Walks a job's list block by block.
template <int BlockKeys>
struct Cursor {
  const CudaSegment* next;
  int32_t left;  // segments
  int32_t low, high;
  CudaSegment segment;
  int32_t at = 0;

  __device__ Cursor(const CudaPlanView& plan, const CudaJob& job)
      : next(plan.segments + job.segment_begin), left(job.segments), low(job.low), high(job.high) {
    segment.count = 0;
    int32_t skip = job.first_block;
    while (true) {
      find();
      const int32_t blocks = (segment.count + BlockKeys - 1) / BlockKeys;
      if (skip < blocks || left == 0) break;
      skip -= blocks;
      at = segment.count;
    }
    at = skip * BlockKeys;
  }
  __device__ void find() {
    while (at >= segment.count && left > 0) {
      segment = *next++;
      segment.trim(low, high);
      --left;
      at = 0;
    }
  }
  __device__ void advance() {
    at += BlockKeys;
    find();
  }
  __device__ BlockInfo info() const {
    BlockInfo info;
    info.valid = max(0, min(BlockKeys, segment.count - at));
    info.full = max(0, min(BlockKeys, segment.full - at));
    // Not `info.full == BlockKeys`: ptxas 13.0 turns that with the clamp above into its opposite.
    info.kind = at + BlockKeys <= segment.full
                    ? block_full
                    : (segment.stride <= 0 ? block_listed : block_limited);
    info.begin = static_cast<int32_t>(segment.begin + int64_t{at} * segment.stride);
    info.stride = segment.stride;
    return info;
  }
  // The row of memory behind a column of the block; columns without a key repeat the last one.
  __device__ int32_t row_of(const CudaPlanView& plan, const BlockInfo& info, int column) const {
    const int at_column = min(column, max(0, info.valid - 1));
    if (info.stride == piece_stride) {
      const CudaPiece piece = plan.pieces[segment.begin + (at + at_column) / piece_keys];
      const int32_t row =
          piece.begin + segment.shift + min(at_column % piece_keys, piece.count - 1);
      return max(min(row, high - 1), 0);  // pieces may begin before memory and end behind it
    }
    return info.stride <= 0 ? plan.gathered[segment.begin + at + at_column]
                            : info.begin + at_column * info.stride;
  }
  // What a column is compared with a row's limit by: its row of memory, −1 where all read it, and
  // more than any limit where it has no key or is hidden from the whole tile.
  __device__ int32_t compared(const CudaPlanView& plan, const BlockInfo& info, int column) const {
    constexpr int32_t never = 0x7fffffff;
    if (column < info.full) return -1;
    if (column >= info.valid) return never;
    if (info.stride == piece_stride) {
      const CudaPiece piece = plan.pieces[segment.begin + (at + column) / piece_keys];
      const int32_t row = piece.begin + segment.shift + column % piece_keys;
      return column % piece_keys < piece.count && row >= 0 ? row : never;
    }
    if (info.stride == column_stride) {
      const uint32_t word = plan.masks[segment.shift + (at + column) / 32];
      if ((word >> (at + column) % 32 & 1u) == 0) return never;
    }
    return row_of(plan, info, column);
  }
};

__device__ inline float load_element(const Output& target, int64_t at) {
  return target.f32 ? static_cast<const float*>(target.out)[at]
                    : __bfloat162float(static_cast<const __nv_bfloat16*>(target.out)[at]);
}

__device__ inline void store_element(const Output& target, int64_t at, float value) {
  if (target.f32) {
    static_cast<float*>(target.out)[at] = value;
  } else {
    static_cast<__nv_bfloat16*>(target.out)[at] = __float2bfloat16_rn(value);
  }
}

// Weight of a partial result in a whole whose largest score is `high`.
__device__ inline float part_weight(float max, float sum, float high) {
  return sum > 0 ? sum * exp2f((max - high) * 1.44269504088896f) : 0.0f;
}

// What a finished row (max in natural units, sum) and the row that the output holds already weigh:
// the output becomes share · row + other_share · output. The state is brought up to date.
struct RowShares {
  float share = 0;
  float other = 0;
};
__device__ inline RowShares join_row(const Output& target, int64_t place, float& max, float& sum) {
  RowShares shares;
  shares.share = sum > 0 ? 1 / sum : 0;
  if (!target.merge) return shares;
  const float other_sum = target.sum[place], other_max = target.max[place];
  if (!(other_sum > 0)) return shares;
  const float high = fmaxf(max, other_max);
  const float weight = part_weight(max, sum, high);
  const float other_weight = part_weight(other_max, other_sum, high);
  const float total = weight + other_weight;
  shares.share = sum > 0 ? weight / total / sum : 0;
  shares.other = other_weight / total;
  max = high;
  sum = total;
  return shares;
}

template <typename T>
__device__ inline void store_pair(void* out, int64_t offset, float x, float y) {
  if constexpr (sizeof(T) == 4) {
    *reinterpret_cast<float2*>(static_cast<float*>(out) + offset) = float2{x, y};
  } else {
    *reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(out) + offset) =
        __floats2bfloat162_rn(x, y);
  }
}

template <typename T>
__device__ inline float2 load_pair(const void* out, int64_t offset) {
  if constexpr (sizeof(T) == 4) {
    return *reinterpret_cast<const float2*>(static_cast<const float*>(out) + offset);
  } else {
    return __bfloat1622float2(
        *reinterpret_cast<const __nv_bfloat162*>(static_cast<const __nv_bfloat16*>(out) + offset));
  }
}

// One row as the lanes of a quad hold it after a warp's product: pair(i) = columns 8 i + column,
// 8 i + column + 1 for i < pairs ≤ Pairs, not normalised.
template <typename T, int Pairs, class Pair>
__device__ inline void store_quad_row(const Output& target, int32_t query, int32_t head, int column,
                                      float max, float sum, int pairs, const Pair& pair) {
  const int64_t offset = query * target.stride + head * target.head_stride + column;
  const int64_t place = int64_t{query} * target.heads + head;
  const RowShares shares = join_row(target, place, max, sum);
#pragma unroll
  for (int i = 0; i < Pairs; ++i) {
    if (i >= pairs) break;
    float2 value = pair(i);
    value.x *= shares.share;
    value.y *= shares.share;
    if (shares.other > 0) {
      const float2 other = load_pair<T>(target.out, offset + i * 8);
      value.x += other.x * shares.other;
      value.y += other.y * shares.other;
    }
    store_pair<T>(target.out, offset + i * 8, value.x, value.y);
  }
  __syncwarp(0xfu << (threadIdx.x & 28));  // all of the quad have read the state
  if (target.max != nullptr && column == 0) {
    target.max[place] = max;
    target.sum[place] = sum;
  }
}

// The same into a partial result or the output, whichever the job wants.
template <int Pairs, class Pair>
__device__ inline void finish_quad_row(const Problem& a, const CudaJob& job, int row, int32_t query,
                                       int32_t head, int column, float max, float sum,
                                       const Pair& pair) {
  const int pairs = a.head_size / 8;
  if (job.partial >= 0) {
    const int64_t at = job.partial + row;
    const float share = sum > 0 ? 1 / sum : 0;
#pragma unroll
    for (int i = 0; i < Pairs; ++i) {
      if (i >= pairs) break;
      const float2 value = pair(i);
      store_pair<float>(a.parts.out, at * a.head_size + i * 8 + column, value.x * share,
                        value.y * share);
    }
    if (column == 0) {
      a.parts.max[at] = max;
      a.parts.sum[at] = sum;
    }
  } else if (a.target.f32) {
    store_quad_row<float, Pairs>(a.target, query, head, column, max, sum, pairs, pair);
  } else {
    store_quad_row<__nv_bfloat16, Pairs>(a.target, query, head, column, max, sum, pairs, pair);
  }
}

}  // namespace kinora::cuda_attention
