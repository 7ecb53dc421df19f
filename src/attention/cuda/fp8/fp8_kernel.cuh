// Attention over a plan on Hopper (sm_90a) in FP8, head size 128: what hopper_kernel.cuh does with
// bf16, for rows that fp8_rows.h has rounded. One producer warpgroup, two consumer warpgroups of 64
// rows each.
//
//   S = Q Kᵀ,  P = 2^(8 + c (S − block max)) in e4m3,  O = O · correction + (P V) · weight
//
// The tensor cores sum products of e4m3 with about 14 bits and cut off the rest, so no sum of
// theirs is longer than a block of 128 keys: P V of each block goes into O in f32. That lets every
// block have a scale of its own: its weights are relative to its own largest, which makes the most
// of e4m3, and `weight` brings them to the largest of all. Weights are summed before they are
// rounded.
//
// While one warpgroup turns scores into weights, the tensor cores multiply for the other. Halves of
// P V come one after the other: with all of it, S and O at once a thread would have too few
// registers.
#pragma once

#include <type_traits>

#include "attention/cuda/fp8/fp8_instructions.cuh"
#include "attention/cuda/fp8/fp8_layout.h"
#include "attention/cuda/hopper_consumer.cuh"

namespace kinora::fp8_attention {

using namespace cuda_attention;
using hopper::barrier_arrive;
using hopper::barrier_arrive_expect;
using hopper::block_keys;
using hopper::group_rows;
using hopper::job_rows;
using hopper::Ring;
using hopper::shared_address;

constexpr int stages = 4;
constexpr int threads = 384;
constexpr int block_pieces = block_keys / piece_keys;
constexpr int tile_bytes = block_keys * head_size;

struct Arguments {
  Problem problem;  // its tensors of queries and rows are not read
  const uint8_t* queries = nullptr;
  const float* query_scales = nullptr;
  const uint8_t* keys = nullptr;
  const uint8_t* values = nullptr;
  const float* key_scales = nullptr;
  const float* value_scales = nullptr;
  const int32_t* blocks = nullptr;  // of each job, where lists begin anywhere; else null
  int64_t pieces = 0;               // of a kv head
};

struct JobSlot {
  CudaJob job;
  float value_scale;
  int2 place[job_rows];  // query, head
  int32_t limit[job_rows];
  float factor[job_rows];  // from a product to the exponent of 2
};

struct KeyBlock {
  BlockInfo info;
  int32_t lead;  // columns before this one are not of the list
};

struct Shared {
  uint8_t queries[2][tile_bytes];
  uint8_t keys[stages][tile_bytes];
  uint8_t values[stages][tile_bytes];
  int32_t listed[stages][block_keys];
  JobSlot slots[2];
  KeyBlock blocks[stages];
  uint64_t full_query[2], empty_query[2];
  uint64_t full_key[stages], empty_key[stages];
  uint64_t full_value[stages], empty_value[stages];
};

// The place of block `count` in the ring of buffers.
struct Place {
  int index;
  uint32_t phase;
  __device__ explicit Place(uint32_t count)
      : index(static_cast<int>(count % stages)), phase(count / stages & 1) {}
};

// Of every eight weights, so many are computed without the unit for exponentials.
constexpr int multiplied_weights = 2;
constexpr int producer_registers = 56;
constexpr int consumer_registers = 252 - producer_registers / 2;  // 64,512 in all

__device__ inline void wait(uint64_t* barrier, uint32_t phase) {
  hopper::barrier_wait<false>(barrier, phase);
}

// A list from the piece on in which it begins.
__device__ inline int32_t widen(CudaSegment& segment, int32_t low, int32_t high) {
  segment.trim(low, high);
  if (segment.stride != 1 || segment.count == 0) return 0;
  const auto lead = static_cast<int32_t>(segment.begin % piece_keys);
  segment.begin -= lead;
  segment.count += lead;
  if (segment.full > 0) segment.full += lead;
  return lead;
}

// Walks a job's list block by block: contiguous keys, and pieces that begin at multiples of 32.
struct PieceCursor {
  const CudaSegment* next;
  int32_t left;  // segments
  int32_t low, high;
  CudaSegment segment;
  int32_t lead = 0;
  int32_t at = 0;

  __device__ PieceCursor(const CudaPlanView& plan, const CudaJob& job)
      : next(plan.segments + job.segment_begin), left(job.segments), low(job.low), high(job.high) {
    segment.count = 0;
    int32_t skip = job.first_block;
    while (true) {
      find();
      const int32_t blocks = (segment.count + block_keys - 1) / block_keys;
      if (skip < blocks || left == 0) break;
      skip -= blocks;
      at = segment.count;
    }
    at = skip * block_keys;
  }
  __device__ void find() {
    while (at >= segment.count && left > 0) {
      segment = *next++;
      lead = widen(segment, low, high);
      --left;
      at = 0;
    }
  }
  __device__ void advance() {
    at += block_keys;
    find();
  }
  __device__ KeyBlock block() const {
    KeyBlock block;
    block.lead = at == 0 ? lead : 0;
    BlockInfo& info = block.info;
    info.valid = max(0, min(block_keys, segment.count - at));
    info.full = max(0, min(block_keys, segment.full - at));
    info.kind = at + block_keys <= segment.full && block.lead == 0
                    ? block_full
                    : (segment.stride <= 0 ? block_listed : block_limited);
    info.begin = static_cast<int32_t>(segment.begin) + at;
    info.stride = segment.stride;
    return block;
  }
  // What a column of a block of pieces is compared with a row's limit by.
  __device__ int32_t compared(const CudaPlanView& plan, int column) const {
    constexpr int32_t never = 0x7fffffff;
    if (at + column >= segment.count) return never;
    const CudaPiece piece = plan.pieces[segment.begin + (at + column) / piece_keys];
    const int32_t row = piece.begin + segment.shift + column % piece_keys;
    return column % piece_keys < piece.count && row >= 0 ? row : never;
  }
};

// Takes jobs, finds their rows and loads their queries, one job ahead of the consumers; three
// warps.
__device__ inline void load_queries(const Arguments& a, Shared& shared) {
  constexpr int count = 96;
  const Problem& problem = a.problem;
  const int thread = static_cast<int>(threadIdx.x) - 32;
  for (Ring<2> slot;; slot.next()) {
    wait(&shared.empty_query[slot.index], slot.phase ^ 1);
    JobSlot& target = shared.slots[slot.index];
    if (thread == 0) {
      const int index = atomicAdd(problem.plan.next, 1);
      if (index < problem.plan.job_count) {
        target.job = problem.plan.jobs[index];
        if (a.blocks != nullptr) target.job.blocks = a.blocks[index];
        target.value_scale = a.value_scales[target.job.head / problem.group];
      } else {
        target.job.blocks = -1;
      }
    }
    hopper::named_sync(hopper::barrier_queries, count);
    if (target.job.blocks < 0) {
      barrier_arrive(&shared.full_query[slot.index]);
      return;
    }
    const CudaJob& job = target.job;
    const float factor = problem.scale * log2_e * unturned * a.key_scales[job.head / problem.group];
    for (int row = thread; row < job_rows; row += count) {
      RowPlace found{-1, 0, 0};
      float scale = 1;
      if (row < job.rows) {
        found = find_row(problem.plan, job, row);
        scale = a.query_scales[int64_t{found.query} * problem.target.heads + found.head];
      }
      target.place[row] = {found.query, found.head};
      target.limit[row] = found.limit;
      target.factor[row] = scale * factor;
    }
    hopper::named_sync(hopper::barrier_queries, count);
    const uint32_t base = shared_address(shared.queries[slot.index]);
    for (int i = thread; i < job_rows * 8; i += count) {
      const int row = i >> 3, part = i & 7;
      const int2 place = target.place[row];
      const int64_t offset =
          place.x < 0 ? 0 : (int64_t{place.x} * problem.target.heads + place.y) * head_size;
      hopper::copy_16(base + static_cast<uint32_t>(key_byte(row, part * 16)),
                      a.queries + offset + part * 16, place.x < 0 ? 0 : 16);
    }
    hopper::copy_commit();
    hopper::copy_wait<0>();
    hopper::fence_async();
    barrier_arrive(&shared.full_query[slot.index]);
  }
}

// Copies keys and values, four pieces a block; one warp.
__device__ inline void load_pieces(const Arguments& a, Shared& shared) {
  const Problem& problem = a.problem;
  const int lane = static_cast<int>(threadIdx.x);
  Ring<stages> stage;
  for (Ring<2> slot;; slot.next()) {
    wait(&shared.full_query[slot.index], slot.phase);
    const CudaJob& job = shared.slots[slot.index].job;
    const int32_t blocks = job.blocks;
    if (blocks < 0) return;
    const auto first_piece = static_cast<int32_t>(job.head / problem.group * a.pieces);
    PieceCursor cursor(problem.plan, job);
    __syncwarp();
    if (lane == 0) barrier_arrive(&shared.empty_query[slot.index]);
    // A lane's own piece of the block that the cursor is at: lane, and lane + 4, + 8 … the same.
    const auto find_piece = [&] {
      CudaPiece found{0, 0};
      const int own = lane % block_pieces;
      if (cursor.segment.stride == piece_stride &&
          cursor.at + own * piece_keys < cursor.segment.count) {
        found = problem.plan.pieces[cursor.segment.begin + cursor.at / piece_keys + own];
        found.begin += cursor.segment.shift;
      }
      return found;
    };
    CudaPiece own = find_piece();
    for (int32_t i = 0; i < blocks; ++i) {
      KeyBlock block = cursor.block();
      const bool contiguous = block.info.stride == 1;
      const bool whole =
          own.count == piece_keys && own.begin >= 0 && own.begin + piece_keys <= cursor.low;
      if (!contiguous && __all_sync(0xffffffffu, whole)) block.info.kind = block_full;
      // Where there is no piece any other does: it is hidden.
      const int64_t piece =
          first_piece + max(0, contiguous ? block.info.begin : own.begin) / piece_keys;
      const auto copy = [&](uint8_t* tile, const uint8_t* from, uint64_t* barrier) {
        if (lane == 0) barrier_arrive_expect(barrier, tile_bytes);
        __syncwarp();
        if (contiguous) {
          if (lane == 0) copy_bytes(tile, from + piece * piece_bytes, tile_bytes, barrier);
        } else if (lane < block_pieces) {
          copy_bytes(tile + lane * piece_bytes, from + piece * piece_bytes, piece_bytes, barrier);
        }
      };
      wait(&shared.empty_key[stage.index], stage.phase ^ 1);
      if (lane == 0) shared.blocks[stage.index] = block;
      if (block.info.kind == block_listed) {
        for (int column = lane; column < block_keys; column += 32) {
          shared.listed[stage.index][column] = cursor.compared(problem.plan, column);
        }
      }
      __syncwarp();
      copy(shared.keys[stage.index], a.keys, &shared.full_key[stage.index]);
      // The next pieces come while the values wait for their buffer.
      if (i + 1 < blocks) {
        cursor.advance();
        own = find_piece();
      }
      wait(&shared.empty_value[stage.index], stage.phase ^ 1);
      copy(shared.values[stage.index], a.values, &shared.full_value[stage.index]);
      stage.next();
    }
  }
}

// The state of two rows of one thread: rows r and r + 8 of its warp's sixteen.
struct RowState {
  float max[2];  // of products
  float sum[2];  // of this thread's columns, times 2^weight_bits
};

// What a block is to what came before: both are multiplied and added.
struct BlockShares {
  float before[2];
  float block[2];
};

// 2^x for weights that become e4m3, by multiplying and adding: the unit for exponentials has as
// much to do as the tensor cores. Within 1e-4; numbers below 2^-24, which e4m3 does not have,
// become it.
__device__ inline float exp2_multiplied(float x) {
  constexpr float shift = 12582912;  // 1.5 · 2^23 leaves the nearest whole number in the low bits
  x = fmaxf(x, -24.0f);
  const float whole = x + shift;
  const float rest = x - (whole - shift);
  const float power =
      fmaf(fmaf(fmaf(0.05517169f, rest, 0.24261127f), rest, 0.69326099f), rest, 0.99992806f);
  return __int_as_float(__float_as_int(power) + (__float_as_int(whole) << 23));
}

// Scores of a block become weights in e4m3, in the registers that the next product reads; one row
// of a thread's two.
template <int Row>
__device__ inline void weigh_row(const float (&s)[64], RowState& state, float factor,
                                 uint32_t (&p)[16], BlockShares& shares) {
  float high = -INFINITY;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    high = fmaxf(high, fmaxf(s[4 * i + 2 * Row], s[4 * i + 2 * Row + 1]));
  }
  high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 1));
  high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 2));
  const float base = fmaf(high == -INFINITY ? 0.0f : -high, factor, float{weight_bits});
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 16; i += 2) {
    float x[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float power = fmaf(s[4 * (i + k / 2) + 2 * Row + k % 2], factor, base);
      const bool multiplied = k < (multiplied_weights + (i / 2 + 1) % 2) / 2;
      x[k] = multiplied ? exp2_multiplied(power) : exp2_fast(power);
    }
    sum += (x[0] + x[1]) + (x[2] + x[3]);
    p[weight_register(i / 2, Row)] = pack_four(x[0], x[1], x[2], x[3]);
  }
  const float largest = fmaxf(state.max[Row], high);
  const float top = largest == -INFINITY ? 0.0f : largest;
  shares.before[Row] = exp2_fast((state.max[Row] - top) * factor);  // exactly 1 where none grows
  shares.block[Row] = exp2_fast((high - top) * factor);
  state.sum[Row] = fmaf(state.sum[Row], shares.before[Row], sum * shares.block[Row]);
  state.max[Row] = largest;
}

// s = Q Kᵀ of one warpgroup
__device__ inline void multiply_keys(float (&s)[64], const uint8_t* queries, const uint8_t* keys) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    mma_shared(s, row_descriptor(queries + k * 32), row_descriptor(keys + k * 32), k > 0);
  }
}

// part = P V, for one half of the columns. All of them would take more registers than there are.
template <int Half>
__device__ inline void multiply_half(float (&part)[32], const uint32_t (&p)[16],
                                     const uint8_t* values) {
  values += Half * (head_size / 2) * piece_keys;
#pragma unroll
  for (int k = 0; k < block_pieces; ++k) {
    mma_registers(part, p + 4 * k, value_descriptor(values + k * piece_bytes), k > 0);
  }
}
// o = o · before + part · block
template <int Half>
__device__ inline void add_half(float (&o)[64], const float (&part)[32],
                                const BlockShares& shares) {
  if (__any_sync(0xffffffff, shares.before[0] != 1.0f || shares.before[1] != 1.0f)) {
#pragma unroll
    for (int i = 0; i < 32; ++i) o[32 * Half + i] *= shares.before[(i >> 1) & 1];
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    o[32 * Half + i] = fmaf(part[i], shares.block[(i >> 1) & 1], o[32 * Half + i]);
  }
}

// Normalises and writes the rows of a job.
__device__ inline void finish(const Problem& a, const JobSlot& slot, const float (&o)[64],
                              const RowState& state, int first_row, int column) {
  constexpr float one = 1.0f / (1 << weight_bits);
  const float value = slot.value_scale * one;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = state.sum[r];
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    sum += __shfl_xor_sync(0xffffffff, sum, 2);
    const int row = first_row + 8 * r;
    if (row >= slot.job.rows) continue;
    finish_quad_row<16>(a, slot.job, row, slot.place[row].x, slot.place[row].y, column,
                        state.max[r] * (slot.factor[row] / log2_e), sum * one, [&](int i) {
                          return float2{o[4 * i + 2 * r] * value, o[4 * i + 2 * r + 1] * value};
                        });
  }
}

__device__ inline void consume(const Problem& a, Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x) - 128;
  // The same in all lanes, which the compiler cannot know.
  const int group = __shfl_sync(0xffffffff, thread >> 7, 0);
  const int lane = thread & 31;
  const int first_row = group * group_rows + ((thread >> 5) & 3) * 16 + (lane >> 2);
  const int column = (lane & 3) * 2;
  const int own = hopper::barrier_first_group + group;
  const int other = hopper::barrier_first_group + (group ^ 1);
  const auto release = [&](uint64_t* barrier) {
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier);
  };
  if (group == 1) hopper::named_arrive(other, 256);

  float o[64], s[64], part[32];
  uint32_t p[16];
  uint32_t scored = 0;  // blocks; values are multiplied in the same order
  for (Ring<2> slot;; slot.next()) {
    wait(&shared.full_query[slot.index], slot.phase);
    const JobSlot& job = shared.slots[slot.index];
    int32_t left = job.job.blocks;
    if (left < 0) break;
    // Read when they are wanted: there are no registers to keep them in.
    const auto factor = [&](int r) { return job.factor[first_row + 8 * r]; };
    RowState state{{-INFINITY, -INFINITY}, {0, 0}};
#pragma unroll
    for (int i = 0; i < 64; ++i) o[i] = 0;

    // One lane reads what the producer said of a block, so that the lane that frees the buffer has
    // read it itself.
    const auto told = [&](const int32_t& field) {
      return __shfl_sync(0xffffffff, lane == 0 ? field : 0, 0);
    };
    const auto mask = [&] {
      const int stage = Place(scored).index;
      const KeyBlock& block = shared.blocks[stage];
      const int32_t kind = told(block.info.kind);
      if (kind == block_full) return;
      const BlockInfo info{kind, told(block.info.begin), told(block.info.stride),
                           told(block.info.full), told(block.info.valid)};
      const int32_t limit[2] = {job.limit[first_row], job.limit[first_row + 8]};
      hopper::hide(s, info, shared.listed[stage], limit, column);
      const int32_t lead = told(block.lead) - column;
      if (lead + column == 0) return;
#pragma unroll
      for (int i = 0; i < 16; ++i) {  // a lead is shorter than a piece
        if ((i >> 2) * 8 + (i & 1) < lead) s[i] = -INFINITY;
      }
    };
    const auto start_scores = [&] {
      const Place key(scored);
      wait(&shared.full_key[key.index], key.phase);
      hopper::mma_fence();
      multiply_keys(s, shared.queries[slot.index] + group * group_rows * head_size,
                    shared.keys[key.index]);
      hopper::mma_commit();
    };
    const auto end_scores = [&] {
      mask();
      release(&shared.empty_key[Place(scored).index]);
      ++scored;
      BlockShares shares;
      weigh_row<0>(s, state, factor(0), p, shares);
      weigh_row<1>(s, state, factor(1), p, shares);
      return shares;
    };
    // P V of the block that was scored last. Unless it is the job's last, the scores of the next
    // one are computed between the halves.
    const auto multiply_values = [&]<bool Last>(std::bool_constant<Last>,
                                                const BlockShares& shares) {
      const Place value(scored - 1);
      wait(&shared.full_value[value.index], value.phase);
      if constexpr (!Last) hopper::named_sync(own, 256);
      hopper::mma_fence();
      multiply_half<0>(part, p, shared.values[value.index]);
      hopper::mma_commit();
      if constexpr (Last) {
        mma_wait<0>(part);
      } else {
        start_scores();
        mma_wait<1>(part);
      }
      add_half<0>(o, part, shares);
      hopper::mma_fence();
      multiply_half<1>(part, p, shared.values[value.index]);
      hopper::mma_commit();
      if constexpr (!Last) hopper::named_arrive(other, 256);
      mma_wait<0>(part);
      release(&shared.empty_value[value.index]);
      add_half<1>(o, part, shares);
    };
    if (left > 0) {
      hopper::named_sync(own, 256);
      start_scores();
      hopper::named_arrive(other, 256);
      hopper::mma_wait<0>(s);
      BlockShares shares = end_scores();
      while (--left > 0) {
        multiply_values(std::false_type(), shares);
        hopper::mma_wait<0>(s);
        shares = end_scores();
      }
      multiply_values(std::true_type(), shares);
    }
    finish(a, job, o, state, first_row, column);
    barrier_arrive(&shared.empty_query[slot.index]);
  }
}

// Other architectures get an empty kernel.
template <int = 0>
__global__ void __launch_bounds__(threads, 1) attend(const __grid_constant__ Arguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char memory[];
  auto& shared =
      *reinterpret_cast<Shared*>(memory + (1024 - (shared_address(memory) & 1023)) % 1024);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      hopper::barrier_init(&shared.full_query[i], 96);
      hopper::barrier_init(&shared.empty_query[i], 256 + 1);
    }
    for (int i = 0; i < stages; ++i) {
      hopper::barrier_init(&shared.full_key[i], 1);
      hopper::barrier_init(&shared.empty_key[i], 8);
      hopper::barrier_init(&shared.full_value[i], 1);
      hopper::barrier_init(&shared.empty_value[i], 8);
    }
    hopper::barrier_init_visible();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    hopper::registers_fewer<producer_registers>();
    if (threadIdx.x >= 32) {
      load_queries(a, shared);
    } else {
      load_pieces(a, shared);
    }
  } else {
    hopper::registers_more<consumer_registers>();
    consume(a.problem, shared);
  }
#endif
}

}  // namespace kinora::fp8_attention
