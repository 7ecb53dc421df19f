// The consumer warpgroups of the Hopper kernel: scores, weights, weighted values, output.
#pragma once

#include "attention/cuda/hopper_layout.cuh"

namespace kinora::hopper {

// The state of two rows of one thread: rows r and r + 8 of its warp's sixteen.
struct RowState {
  float max[2];
  float sum[2];  // of this thread's columns
};

__device__ inline void hide(float (&s)[64], const BlockInfo& info, const int32_t* listed,
                            const int32_t (&limit)[2], int column) {
  if (info.kind == block_limited) {
    const int32_t end[2] = {info.end_for(limit[0]) - column, info.end_for(limit[1]) - column};
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const int at = (i >> 2) * 8 + (i & 1);
      if (at >= end[(i >> 1) & 1]) s[i] = -INFINITY;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int2 rows = *reinterpret_cast<const int2*>(listed + i * 8 + column);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (rows.x >= limit[r]) s[4 * i + 2 * r] = -INFINITY;
        if (rows.y >= limit[r]) s[4 * i + 2 * r + 1] = -INFINITY;
      }
    }
  }
}

// Where the scores of a thread's two rows go, and of which block of 32 keys it writes them.
struct ScorePlace {
  float* row[2];  // null: nowhere
  int64_t block;
  int64_t end;
};

// Scores become weights in place; gives the factor for what was summed so far. A measuring kernel
// also writes log2 of every 32 keys' sum; each lane of a quad has one of a row's four.
template <bool Measure = false>
__device__ inline void weigh(float (&s)[64], RowState& state, float factor, float (&correction)[2],
                             const ScorePlace& scores = {}) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float high = state.max[r];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      high = fmaxf(high, fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]));
    }
    high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 1));
    high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 2));
    const float safe = high == -INFINITY ? 0.0f : high;
    const float base = safe * factor;
    correction[r] = exp2_fast((state.max[r] - safe) * factor);  // exactly 1 where nothing changes
    state.max[r] = high;
    float parts[Measure ? 4 : 1] = {};  // of every 32 keys
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float& x = s[4 * i + 2 * r];
      float& y = s[4 * i + 2 * r + 1];
      x = exp2_fast(fmaf(x, factor, -base));
      y = exp2_fast(fmaf(y, factor, -base));
      parts[Measure ? i / 4 : 0] += x + y;
    }
    float sum = parts[0];
    if constexpr (Measure) {
      sum = (parts[0] + parts[1]) + (parts[2] + parts[3]);
      // Lanes swap what the others are to sum up, until each of a quad has one part.
      const bool odd = (threadIdx.x & 1) != 0, upper = (threadIdx.x & 2) != 0;
      float low = odd ? parts[1] : parts[0], high_part = odd ? parts[3] : parts[2];
      low += __shfl_xor_sync(0xffffffff, odd ? parts[0] : parts[1], 1);
      high_part += __shfl_xor_sync(0xffffffff, odd ? parts[2] : parts[3], 1);
      float measured = upper ? high_part : low;
      measured += __shfl_xor_sync(0xffffffff, upper ? low : high_part, 2);
      if (scores.row[r] != nullptr && scores.block < scores.end) {
        scores.row[r][scores.block] = log2f(measured) + base;
      }
    }
    state.sum[r] = fmaf(state.sum[r], correction[r], sum);
  }
}

__device__ inline void narrow(const float (&s)[64], uint32_t (&p)[32]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
}

template <int Size>
__device__ inline void rescale(float (&o)[Size], const float (&correction)[2]) {
#pragma unroll
  for (int i = 0; i < Size; ++i) o[i] *= correction[(i >> 1) & 1];
}

// s = Q Kᵀ of one warpgroup
template <int Columns = 128>
__device__ inline void multiply_keys(float (&s)[64], uint64_t queries, uint64_t keys) {
#pragma unroll
  for (int k = 0; k < Columns / 16; ++k) {
    const uint64_t step = static_cast<uint64_t>((k >> 2) * (half_tile * 2 >> 4) + (k & 3) * 2);
    mma_shared(s, queries + step, keys + step, k > 0);
  }
}

// o (+)= P V
template <int Size>
__device__ inline void multiply_values(float (&o)[Size], const uint32_t (&p)[32], uint64_t values,
                                       bool accumulate) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    mma_registers(o, p + 4 * k, values + static_cast<uint64_t>(k * (16 * 128 >> 4)),
                  k > 0 || accumulate);
  }
}

// Of the four lanes of a quad, lane q gives its word i to lane i, which has it as word q.
__device__ inline void turn_quad(uint32_t (&words)[4]) {
  const bool odd = (threadIdx.x & 1) != 0, upper = (threadIdx.x & 2) != 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffff, odd ? words[i] : words[i + 1], 1);
    (odd ? words[i] : words[i + 1]) = other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t other = __shfl_xor_sync(0xffffffff, upper ? words[i] : words[i + 2], 2);
    (upper ? words[i] : words[i + 2]) = other;
  }
}

// Normalises and writes rows of bf16 that are joined with nothing, 16 bytes at a time.
template <int Size>
__device__ inline void finish_whole(const Problem& a, const JobSlot& slot, const float (&o)[Size],
                                    const RowState& state, int first_row, int column) {
  const int lane_piece = column / 2;  // of four
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = state.sum[r];
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    sum += __shfl_xor_sync(0xffffffff, sum, 2);
    const int row = first_row + 8 * r;
    const bool inside = row < slot.job.rows;
    const int2 place = inside ? slot.place[row] : int2{0, 0};
    const float share = sum > 0 ? 1 / sum : 0;
    auto* out = static_cast<__nv_bfloat16*>(a.target.out) + place.x * a.target.stride +
                place.y * a.target.head_stride + lane_piece * 8;
#pragma unroll
    for (int i = 0; i < Size / 4; i += 4) {
      uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = 4 * (i + j) + 2 * r;
        words[j] = pack_bf16(o[at] * share, o[at + 1] * share);
      }
      turn_quad(words);
      if (inside) {
        *reinterpret_cast<uint4*>(out + i * 8) = {words[0], words[1], words[2], words[3]};
      }
    }
    if (inside && a.target.max != nullptr && column == 0) {
      const int64_t at = int64_t{place.x} * a.target.heads + place.y;
      a.target.max[at] = state.max[r] * a.scale;
      a.target.sum[at] = sum;
    }
  }
}

// Normalises and writes the rows of a job.
template <int Size>
__device__ inline void finish(const Problem& a, const JobSlot& slot, const float (&o)[Size],
                              const RowState& state, int first_row, int column) {
  if (slot.job.partial < 0 && !a.target.f32 && !a.target.merge) {
    return finish_whole(a, slot, o, state, first_row, column);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = state.sum[r];
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    sum += __shfl_xor_sync(0xffffffff, sum, 2);
    const int row = first_row + 8 * r;
    if (row >= slot.job.rows) continue;
    finish_quad_row<Size / 4>(a, slot.job, row, slot.place[row].x, slot.place[row].y, column,
                              state.max[r] * a.scale, sum, [&](int i) {
                                return float2{o[4 * i + 2 * r], o[4 * i + 2 * r + 1]};
                              });
  }
}

template <typename V>
__device__ void consume(const Problem& a, Shared<V>& shared) {
  const int thread = static_cast<int>(threadIdx.x) - 128;
  const int group = thread >> 7;
  const int lane = thread & 31;
  const int first_row = group * group_rows + ((thread >> 5) & 3) * 16 + (lane >> 2);
  const int column = (lane & 3) * 2;
  const float factor = a.scale * 1.44269504088896f;
  const int own = barrier_first_group + group;
  const int other = barrier_first_group + (group ^ 1);
  const auto release = [&](uint64_t* barrier) {
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier);
  };
  const auto wait_full = [](uint64_t* barrier, uint32_t phase) {
    barrier_wait<V::watch>(barrier, phase);
    if constexpr (V::gather) fence_async();
  };
  if (group == 1) named_arrive(other, 256);

  float o[V::columns / 2], s[64];
  uint32_t p[32];
  Ring<V::stages> key, value;
  for (Ring<2> slot;; slot.next()) {
    barrier_wait<V::watch>(&shared.full_query[slot.index], slot.phase);
    const JobSlot& job = shared.slots[slot.index];
    const int32_t blocks = job.job.blocks;
    if (blocks < 0) break;
    const int32_t limit[2] = {job.limit[first_row], job.limit[first_row + 8]};
    const uint64_t queries =
        tile_descriptor(shared.queries[slot.index] + group * group_rows * 64, 16);
    RowState state{{-INFINITY, -INFINITY}, {0, 0}};
    float correction[2];
    ScorePlace scores{};
    if constexpr (V::measure) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int2 place = job.place[first_row + 8 * r];
        if (place.x < 0) continue;
        scores.row[r] = a.scores + (int64_t{place.x} * a.target.heads + place.y) * a.score_stride;
      }
      scores.block = job.job.first_block * 4 + (lane & 3);
      scores.end = a.score_stride;
    }
    const auto weigh_block = [&] {
      weigh<V::measure>(s, state, factor, correction, scores);
      if constexpr (V::measure) scores.block += 4;
    };

    // One lane reads what the producer said of a block, so that the lane that frees the buffer has
    // read it itself.
    const auto told = [&](const int32_t& field) {
      return __shfl_sync(0xffffffff, lane == 0 ? field : 0, 0);
    };
    const auto mask = [&] {
      const BlockInfo& block = shared.blocks[key.index];
      const int32_t kind = told(block.kind);
      if (kind == block_full) return;
      const BlockInfo info{kind, told(block.begin), told(block.stride), told(block.full),
                           told(block.valid)};
      hide(s, info, shared.listed[key.index], limit, column);
    };
    if (blocks == 0) {
#pragma unroll
      for (int i = 0; i < V::columns / 2; ++i) o[i] = 0;
    } else {
      wait_full(&shared.full_key[key.index], key.phase);
      mma_fence();
      multiply_keys<V::columns>(s, queries, tile_descriptor(shared.keys[key.index], 16));
      mma_commit();
      mma_wait<0>(s);
      mask();
      release(&shared.empty_key[key.index]);
      key.next();
      weigh_block();
      narrow(s, p);
      for (int32_t block = 1; block < blocks; ++block) {
        wait_full(&shared.full_key[key.index], key.phase);
        named_sync(own, 256);
        mma_fence();
        multiply_keys<V::columns>(s, queries, tile_descriptor(shared.keys[key.index], 16));
        mma_commit();
        wait_full(&shared.full_value[value.index], value.phase);
        mma_fence();
        multiply_values(o, p, tile_descriptor(shared.values[value.index], half_tile * 2),
                        block > 1);
        mma_commit();
        named_arrive(other, 256);
        mma_wait<1>(s);
        mask();
        release(&shared.empty_key[key.index]);
        key.next();
        weigh_block();
        // Never true. Without a branch the assembler moves the wait above the arithmetic that it
        // is meant to overlap with.
        if (fminf(state.sum[0], state.sum[1]) < 0) __nanosleep(1);
        mma_wait<0>(o);
        release(&shared.empty_value[value.index]);
        value.next();
        narrow(s, p);
        // Mostly no maximum of a warp has grown.
        if (__any_sync(0xffffffff, correction[0] != 1.0f || correction[1] != 1.0f)) {
          rescale(o, correction);
        }
      }
      wait_full(&shared.full_value[value.index], value.phase);
      mma_fence();
      multiply_values(o, p, tile_descriptor(shared.values[value.index], half_tile * 2), blocks > 1);
      mma_commit();
      mma_wait<0>(o);
      release(&shared.empty_value[value.index]);
      value.next();
    }
    finish(a, job, o, state, first_row, column);
    barrier_arrive(&shared.empty_query[slot.index]);
  }
}

}  // namespace kinora::hopper
