// What the decode kernels (decode_cuda.h) share: their arguments, which rows of which sequences a
// block reads, and which of them a token sees.
//
// The rows of a sequence are numbered through all its sets; every set starts at a multiple of
// decode_share, so the rows of a share always come from one set. Rows that a set lacks are never
// seen. The shares of all sequences are cut into parts, one for each block: where that can be done
// almost evenly, every sequence gets parts of its own; otherwise parts of equal length span several
// sequences, so that long and short ones keep all blocks equally busy.
#pragma once

#include "attention/cuda/decode/decode_cuda.h"
#include "attention/cuda/mma_cuda.cuh"
#include "base/cuda_support.h"
#include "ops/packed_rows_cuda.cuh"

namespace kinora::cuda_attention {

// Attention of the same tokens over other rows, which is joined with this one's.
struct OtherRows {
  const float* out = nullptr;  // [tokens, heads, d]; null: there are none
  const float* max = nullptr;  // [tokens, heads], in natural units
  const float* sum = nullptr;
  const DeviceSequence* sequences = nullptr;  // who has them
  int32_t sequence_count = 0;
};

struct DecodeArguments {
  const void* queries = nullptr;
  int64_t query_stride = 0;  // in elements
  int64_t query_head_stride = 0;
  const void* unturned = nullptr;  // queries, keys and values of the new tokens; null: `queries`
  int64_t unturned_stride = 0;
  const float* cos = nullptr;  // [tokens, d / 2]
  const float* sin = nullptr;
  bool keep_queries = false;          // turned ones are written to `queries`
  const float* query_norm = nullptr;  // [d]; null: unturned heads are not normed
  const float* key_norm = nullptr;
  float norm_epsilon = 0;
  const DeviceSequence* sequences = nullptr;
  const uint64_t* masks = nullptr;  // [tokens]
  void* out = nullptr;
  int64_t out_stride = 0;
  int64_t out_head_stride = 0;
  float* state_max = nullptr;  // [tokens, heads], or null
  float* state_sum = nullptr;
  float* part_out = nullptr;  // [slots, tokens × heads, d]
  float* part_max = nullptr;  // [slots, tokens × heads]; of scores × scale × log2 e
  float* part_sum = nullptr;
  unsigned int* arrived = nullptr;  // zero between calls
  OtherRows others;                 // only join_pairs reads them
  float factor = 1;                 // scale × log2 e
  int32_t sequence_count = 1;
  int32_t tokens = 1;  // of all sequences
  int32_t heads = 1;
  int32_t kv_heads = 1;
  int32_t parts = 1;         // of a kv head's rows in decode_few; the first `longer_heads` heads
  int32_t longer_heads = 0;  // have one more
  bool queries_f32 = false;
  bool out_f32 = false;
};

constexpr int decode_warps = 8;
constexpr int decode_tile = 128;  // rows of a stage
constexpr int decode_share = 32;  // rows that parts are made of: finer than tiles, to be even

__device__ inline int32_t shares_of(const DeviceSequence& sequence) {
  if (sequence.tokens == 0) return 0;
  int32_t shares = 0;
#pragma unroll
  for (int i = 0; i < most_row_sets; ++i) {
    shares += (static_cast<int32_t>(sequence.sets[i].count) + decode_share - 1) / decode_share;
  }
  return shares;
}

// ⌊shares · part / parts⌋ without leaving 32 bits.
__device__ inline int32_t first_share(int32_t shares, int32_t part, int32_t parts) {
  return shares / parts * part + shares % parts * part / parts;
}

// The part that holds a share.
__device__ inline int32_t part_of(int32_t share, int32_t shares, int32_t parts) {
  return static_cast<int32_t>((static_cast<uint64_t>(share + 1) * parts - 1) / shares);
}

// The share where each sequence starts, and the end of the last one, in shared memory.
using SequenceStarts = int32_t[most_decode_sequences + 1];

// Memory that is read soon: since it was last used the caches have seen all weights of the model.
__device__ inline void fetch_line(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

// By a whole block; one sequence needs no starts. Returns the number of shares.
__device__ inline int32_t place_sequences(const DecodeArguments& a, SequenceStarts& starts) {
  static_assert(most_decode_sequences == 64);
  const auto bytes = static_cast<int32_t>(a.sequence_count * sizeof(DeviceSequence));
  for (auto i = static_cast<int32_t>(threadIdx.x) * 64; i < bytes;
       i += static_cast<int32_t>(blockDim.x) * 64) {
    fetch_line(reinterpret_cast<const char*>(a.sequences) + i);
  }
  if (a.sequence_count == 1) return shares_of(a.sequences[0]);
  if (threadIdx.x < 32) {
    const int lane = static_cast<int>(threadIdx.x);
    int32_t own[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      own[i] = 2 * lane + i < a.sequence_count ? shares_of(a.sequences[2 * lane + i]) : 0;
    }
    int32_t sum = own[0] + own[1];
    for (int step = 1; step < 32; step *= 2) {
      const int32_t before = __shfl_up_sync(0xffffffff, sum, step);
      if (lane >= step) sum += before;
    }
    if (lane == 0) starts[0] = 0;
    starts[2 * lane + 1] = sum - own[1];
    starts[2 * lane + 2] = sum;
  }
  __syncthreads();
  return starts[most_decode_sequences];
}

// The sequence that holds a share; by a whole warp.
__device__ inline int32_t sequence_of(const SequenceStarts& starts, int32_t share, int lane) {
  return __popc(__ballot_sync(0xffffffff, starts[lane + 1] <= share)) +
         __popc(__ballot_sync(0xffffffff, starts[lane + 33] <= share));
}

// The sequence of a token of the batch, or −1; by a whole warp.
__device__ inline int32_t sequence_of_token(const DeviceSequence* sequences, int32_t count,
                                            int32_t token, int lane) {
#pragma unroll 1
  for (int32_t first = 0; first < count; first += 32) {
    bool here = false;
    if (first + lane < count) {
      const DeviceSequence& sequence = sequences[first + lane];
      here = static_cast<uint32_t>(token - sequence.first_token) <
             static_cast<uint32_t>(sequence.tokens);
    }
    const unsigned int found = __ballot_sync(0xffffffff, here);
    if (found != 0) return first + __ffs(static_cast<int>(found)) - 1;
  }
  return -1;
}

// Some parts, side by side.
struct PartRange {
  int32_t first;
  int32_t count;
};

__device__ inline int32_t parts_of_length(int32_t shares, int32_t length) {
  return (shares + length - 1) / length;
}

// The length of a part in shares where every sequence gets parts of its own; 0 where some blocks
// would have an eighth more to do than others. By a whole warp.
__device__ inline int32_t own_part_length(const SequenceStarts& starts, int32_t shares,
                                          int32_t parts, int lane) {
  const int32_t even = parts_of_length(shares, parts);
#pragma unroll 1
  for (int slack = 0; slack <= 2; ++slack) {
    const int32_t length = even + even * slack / 16;
    const int32_t needed = parts_of_length(starts[2 * lane + 1] - starts[2 * lane], length) +
                           parts_of_length(starts[2 * lane + 2] - starts[2 * lane + 1], length);
    if (__reduce_add_sync(0xffffffff, needed) <= parts) return length;
  }
  return 0;
}

// The parts of a sequence that is alone: a block takes two shares at a time, so shorter parts would
// only be more to join.
__device__ inline int32_t lone_parts(int32_t shares, int32_t parts) {
  return min(parts, (shares + 1) / 2);
}

// Which parts read a sequence; by a whole warp. There is at least one share.
__device__ inline PartRange parts_reading(const DecodeArguments& a, const SequenceStarts& starts,
                                          int32_t shares, int32_t parts, int32_t sequence,
                                          int lane) {
  if (a.sequence_count == 1) return {0, lone_parts(shares, parts)};
  const int32_t length = own_part_length(starts, shares, parts, lane);
  if (length > 0) {
    int32_t before = 0;
#pragma unroll
    for (int i = 2 * lane; i < 2 * lane + 2; ++i) {
      if (i < sequence) before += parts_of_length(starts[i + 1] - starts[i], length);
    }
    return {__reduce_add_sync(0xffffffff, before),
            parts_of_length(starts[sequence + 1] - starts[sequence], length)};
  }
  parts = min(parts, shares);
  const int32_t first = part_of(starts[sequence], shares, parts);
  return {first, part_of(starts[sequence + 1] - 1, shares, parts) - first + 1};
}

// What a block reads of one sequence: rows [begin, end), multiples of decode_share.
struct Stretch {
  int32_t sequence;
  int32_t begin;
  int32_t end;
  PartRange parts;  // who reads the sequence
};

// Walks along the stretches of one part.
class Walk {
 public:
  // By a whole block. Some parts may have nothing to read. Parts of one sequence start at multiples
  // of `unit` shares.
  __device__ Walk(const DecodeArguments& a, SequenceStarts& starts, int32_t part, int32_t parts,
                  int32_t unit = 1)
      : starts_(starts),
        shares_(place_sequences(a, starts)),
        parts_(min(parts, shares_)),
        unit_(unit) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (shares_ == 0) return;
    if (a.sequence_count == 1) {
      set_only(0, 0, shares_, {0, lone_parts(shares_, parts)}, part);
    } else if (const int32_t length = own_part_length(starts, shares_, parts, lane); length > 0) {
      find_own(length, part, lane);
    } else if (part < parts_) {
      begin_ = first_share(shares_, part, parts_);
      end_ = first_share(shares_, part + 1, parts_);
      sequence_ = sequence_of(starts, begin_, lane);
    }
  }

  __device__ bool next(Stretch& stretch) {
    if (only_) {
      only_ = false;
      stretch = stretch_;
      return true;
    }
    while (begin_ < end_) {
      const int32_t first = starts_[sequence_], last = starts_[sequence_ + 1];
      const int32_t end = min(end_, last);
      const bool some = begin_ < end;
      if (some) {
        const int32_t first_part = part_of(first, shares_, parts_);
        stretch = {sequence_,
                   (begin_ - first) * decode_share,
                   (end - first) * decode_share,
                   {first_part, part_of(last - 1, shares_, parts_) - first_part + 1}};
        begin_ = end;
      }
      ++sequence_;
      if (some) return true;
    }
    return false;
  }

 private:
  // The part is one of those of a sequence, whose shares are [begin, end), alone.
  __device__ void set_only(int32_t sequence, int32_t begin, int32_t end, const PartRange& parts,
                           int32_t part) {
    if (part >= parts.first + parts.count) return;
    const int32_t shares = end - begin, place = part - parts.first;
    const int32_t units = (shares + unit_ - 1) / unit_;
    const auto boundary = [&](int32_t before) {
      return min(first_share(units, before, parts.count) * unit_, shares) * decode_share;
    };
    stretch_ = {sequence, boundary(place), boundary(place + 1), parts};
    only_ = true;
  }

  __device__ void find_own(int32_t length, int32_t part, int lane) {
    int32_t own[2];  // parts of this lane's two sequences
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      own[i] = parts_of_length(starts_[2 * lane + i + 1] - starts_[2 * lane + i], length);
    }
    int32_t sum = own[0] + own[1];
    for (int step = 1; step < 32; step *= 2) {
      const int32_t before = __shfl_up_sync(0xffffffff, sum, step);
      if (lane >= step) sum += before;
    }
    const int32_t sequence = __popc(__ballot_sync(0xffffffff, sum - own[1] <= part)) +
                             __popc(__ballot_sync(0xffffffff, sum <= part));
    const int32_t behind = __shfl_sync(0xffffffff, sum, sequence / 2);
    const int32_t last = __shfl_sync(0xffffffff, own[1], sequence / 2);
    if (sequence >= most_decode_sequences) return;
    const int32_t count = parts_of_length(starts_[sequence + 1] - starts_[sequence], length);
    const int32_t first = (sequence % 2 == 0 ? behind - last : behind) - count;
    set_only(sequence, starts_[sequence], starts_[sequence + 1], {first, count}, part);
  }

  const SequenceStarts& starts_;
  int32_t shares_;
  int32_t parts_;
  int32_t unit_;
  bool only_ = false;
  Stretch stretch_;
  int32_t begin_ = 0, end_ = 0;  // shares still to be walked along
  int32_t sequence_ = 0;
};

// The set that a row of a sequence belongs to; moves forward only.
struct SetCursor {
  int32_t index = -1;
  int32_t begin = 0;  // rows [begin, next) of the sequence are the set's, and what fills it up
  int32_t next = 0;

  // True where the set has changed. The row must be one of the sequence.
  __device__ bool seek(const DeviceSequence& sequence, int32_t row) {
    if (row < next) return false;
    do {
      ++index;
      begin = next;
      const auto count = static_cast<int32_t>(sequence.sets[index].count);
      next = begin + (count + decode_share - 1) / decode_share * decode_share;
    } while (row >= next);
    return true;
  }
};

constexpr int32_t all_rows = 0x7fffffff;

// Rows of [begin, end) before this one were there before the kernels that still run, and `margin`
// rows more that follow them.
__device__ inline int32_t old_rows_end(const DeviceSequence& sequence, int32_t begin, int32_t end,
                                       int32_t margin = 0) {
  SetCursor at;
  for (int32_t row = begin; row < end; row = at.next) {
    at.seek(sequence, row);
    const DeviceRowSet& set = sequence.sets[at.index];
    if (set.list != nullptr) return row;
    if (at.index == sequence.own) {
      const int32_t old_end = at.begin + static_cast<int32_t>(set.count) - sequence.tokens - margin;
      if (old_end < end) return old_end;
    }
  }
  return all_rows;
}

// Rows of the cursor's set before this one are seen by all tokens and have no weights.
__device__ inline int32_t plain_rows_end(const DeviceSequence& sequence, const SetCursor& at) {
  const DeviceRowSet& set = sequence.sets[at.index];
  if (set.weights != nullptr || set.serves != ~uint64_t{0}) return 0;
  return at.begin + static_cast<int32_t>(set.count) -
         (at.index == sequence.own ? sequence.tokens + sequence.earlier : 0);
}

// Bit i: new token `token` of the sequence, which has this mask, sees row `row` + i. The 32 rows,
// or as many as the caller looks at, are of the cursor's set.
__device__ inline uint32_t rows_seen(const DeviceSequence& sequence, const SetCursor& at,
                                     int32_t row, int32_t token, uint64_t mask) {
  const DeviceRowSet& set = sequence.sets[at.index];
  const int32_t place = row - at.begin, left = static_cast<int32_t>(set.count) - place;
  if (left <= 0 || (set.serves >> token & 1) == 0) return 0;
  uint32_t seen = left < 32 ? (1u << left) - 1 : ~0u;
  if (at.index == sequence.own) {
    const int32_t named = sequence.tokens + sequence.earlier - left;  // the first row's bit
    if (named >= 0) {
      seen &= static_cast<uint32_t>(mask >> named);
    } else if (named > -32) {
      seen &= static_cast<uint32_t>(mask << -named) | ((1u << -named) - 1);
    }
  }
  return seen;
}

// What the weight of the row that this lane stands for adds to its score, in log2 units: lane i of
// a warp stands for row `row` + i.
__device__ inline float row_weight(const DeviceSequence& sequence, const SetCursor& at, int32_t row,
                                   int lane) {
  const DeviceRowSet& set = sequence.sets[at.index];
  const int32_t place = row - at.begin + lane;
  if (set.weights == nullptr || place >= static_cast<int32_t>(set.count)) return 0;
  return log2f(set.weights[place]);
}

// ⌊value · inverse⌋ for whole numbers up to some thousands, with `inverse` one over such a number:
// a division takes ten times as many instructions.
__device__ inline int32_t small_quotient(int32_t value, float inverse) {
  return static_cast<int32_t>((static_cast<float>(value) + 0.5f) * inverse);
}

// The (token, head) pairs of a kv head of a sequence: pair p is token p / group of the sequence and
// head p % group of the kv head.
struct DecodePairs {
  int32_t first_token;
  int32_t count;
  int32_t group;
  int32_t first_head;
  int32_t heads;
  float inverse;  // 1 / group

  __device__ DecodePairs(const DecodeArguments& a, const DeviceSequence& sequence, int kv_head)
      : first_token(sequence.first_token),
        count(sequence.tokens * (a.heads / a.kv_heads)),
        group(a.heads / a.kv_heads),
        first_head(kv_head * group),
        heads(a.heads),
        inverse(reciprocal(static_cast<float>(group))) {}

  __device__ int32_t token(int p) const { return first_token + small_quotient(p, inverse); }
  __device__ int32_t head(int p) const {
    return first_head + p - small_quotient(p, inverse) * group;
  }
  __device__ int64_t place(int p) const { return int64_t{token(p)} * heads + head(p); }
};

__device__ inline float load_value(const void* data, bool f32, int64_t at) {
  return f32 ? static_cast<const float*>(data)[at]
             : __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
}

// Single numbers of rows in any type that they are kept in.
struct RowReader {
  DType type = DType::f32;
  int32_t head_size = 1;

  // A head's place among those of all rows: row · kv heads + kv head.
  __device__ float load(const void* rows, int64_t head, int column) const {
    if (type == DType::f32 || type == DType::bf16) {
      return load_value(rows, type == DType::f32, head * head_size + column);
    }
    const uint8_t* codes =
        static_cast<const uint8_t*>(rows) + head * stored_columns(type, head_size);
    return type == DType::u8 ? cuda::packed_value<e4m3>(codes, head_size, column)
                             : cuda::packed_value<int8_t>(codes, head_size, column);
  }
};

__device__ inline void store_value(void* out, bool f32, int64_t at, float value) {
  if (f32) {
    static_cast<float*>(out)[at] = value;
  } else {
    static_cast<__nv_bfloat16*>(out)[at] = __float2bfloat16_rn(value);
  }
}

}  // namespace kinora::cuda_attention
