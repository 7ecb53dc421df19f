// Attention over a plan on Hopper (sm_90a), head size 128, bf16 keys and values: a persistent
// kernel of one producer warpgroup, which copies keys and values into shared memory, and two
// consumer warpgroups of 64 rows each, which do all arithmetic. runner_hopper.cu launches it.
//
//   S = Q Kᵀ (shared memory × shared memory), P = exp2(c S − c max), O = O · correction + P V
//   (registers × shared memory); f32 everywhere but in P, Q, K, V.
//
// While the tensor cores multiply P(i) with V(i), S(i + 1) is computed and turned into P(i + 1).
#pragma once

#include "attention/cuda_problem.cuh"
#include "attention/hopper_instructions.cuh"
#include "attention/mma_cuda.cuh"
#include "attention/runner_hopper.h"

namespace kinora::hopper {

using namespace cuda_attention;

constexpr int block_keys = 128;
constexpr int group_rows = 64;  // of one consumer warpgroup
constexpr int job_rows = 2 * group_rows;
constexpr int threads = 384;
constexpr int half_tile = 128 * 64;  // elements of 64 columns of 128 rows
constexpr int tile_bytes = 2 * half_tile * 2;

struct Arguments {
  CUtensorMap keys;  // (64 columns, rows, 2 halves, kv heads)
  CUtensorMap values;
  Problem problem;
};

struct JobSlot {
  CudaJob job;
  int2 place[job_rows];  // query, head
  int32_t limit[job_rows];
};

template <int Stages>
struct Shared {
  __nv_bfloat16 queries[2][2 * half_tile];
  __nv_bfloat16 keys[Stages][2 * half_tile];
  __nv_bfloat16 values[Stages][2 * half_tile];
  int32_t listed[Stages][block_keys];  // what is compared with a limit
  JobSlot slots[2];
  BlockInfo blocks[Stages];
  uint64_t full_query[2], empty_query[2];
  uint64_t full_key[Stages], empty_key[Stages];
  uint64_t full_value[Stages], empty_value[Stages];
};

// Variants of the kernel; the defaults are what the library runs.
template <bool GatherKeys, bool OverlapProducts = true, bool PingPong = true,
          bool WatchTime = false, int StageCount = 2, bool SkipRescale = false>
struct Variant {
  static constexpr bool gather = GatherKeys;  // plans with strided or gathered segments
  static constexpr bool overlap = OverlapProducts;
  static constexpr bool ping_pong = PingPong;
  static constexpr bool watch = WatchTime;
  static constexpr int stages = StageCount;
  static constexpr bool skip_rescale = SkipRescale;     // where no maximum of a warp has grown
  static constexpr int key_warps = GatherKeys ? 3 : 1;  // the other producer warps load queries
  static constexpr int key_arrivals = GatherKeys ? key_warps * 32 : 1;
  static constexpr int producer_registers = GatherKeys ? 72 : 40;
  static constexpr int consumer_registers = GatherKeys ? 216 : 232;
};

// A place in a ring of buffers.
template <int Size>
struct Ring {
  int index = 0;
  uint32_t phase = 0;
  __device__ void next() {
    if (++index == Size) {
      index = 0;
      phase ^= 1;
    }
  }
};

enum NamedBarrier : int { barrier_first_group = 1, barrier_queries = 3, barrier_keys = 4 };

// Byte offset of 16-byte piece `piece` (0 … 15) of a row of a tile.
__device__ inline uint32_t swizzled(int row, int piece) {
  return static_cast<uint32_t>((piece >> 3) * half_tile * 2 + row * 128 +
                               (((piece & 7) ^ (row & 7)) << 4));
}

// Takes jobs, finds their rows and loads their queries, one job ahead of the consumers.
template <typename V>
__device__ void load_queries(const Problem& a, Shared<V::stages>& shared) {
  constexpr int first = V::key_warps * 32;
  constexpr int count = 128 - first;
  const int thread = static_cast<int>(threadIdx.x) - first;
  for (Ring<2> slot;; slot.next()) {
    barrier_wait<V::watch>(&shared.empty_query[slot.index], slot.phase ^ 1);
    JobSlot& target = shared.slots[slot.index];
    if (thread == 0) {
      const int index = atomicAdd(a.plan.next, 1);
      if (index < a.plan.job_count) {
        target.job = a.plan.jobs[index];
      } else {
        target.job.blocks = -1;
      }
    }
    named_sync(barrier_queries, count);
    if (target.job.blocks < 0) {
      barrier_arrive(&shared.full_query[slot.index]);
      return;
    }
    const CudaJob& job = target.job;
    for (int row = thread; row < job_rows; row += count) {
      RowPlace found{-1, 0, 0};
      if (row < job.rows) found = find_row(a.plan, job, row);
      target.place[row] = {found.query, found.head};
      target.limit[row] = found.limit;
    }
    named_sync(barrier_queries, count);
    const uint32_t base = shared_address(shared.queries[slot.index]);
    for (int i = thread; i < job_rows * 16; i += count) {
      const int row = i >> 4, piece = i & 15;
      const int2 place = target.place[row];
      const int64_t offset =
          place.x < 0 ? 0 : place.x * a.query_stride + place.y * a.query_head_stride + piece * 8;
      if (!a.queries_f32) {
        copy_16(base + swizzled(row, piece), static_cast<const __nv_bfloat16*>(a.queries) + offset,
                place.x < 0 ? 0 : 16);
      } else {
        uint4 packed{};
        if (place.x >= 0) {
          const auto* from =
              reinterpret_cast<const float4*>(static_cast<const float*>(a.queries) + offset);
          const float4 low = from[0], high = from[1];
          packed = {pack_bf16(low.x, low.y), pack_bf16(low.z, low.w), pack_bf16(high.x, high.y),
                    pack_bf16(high.z, high.w)};
        }
        *reinterpret_cast<uint4*>(reinterpret_cast<char*>(shared.queries[slot.index]) +
                                  swizzled(row, piece)) = packed;
      }
    }
    copy_commit();
    copy_wait<0>();
    fence_async();
    barrier_arrive(&shared.full_query[slot.index]);
  }
}

// Copies contiguous keys and values with the copy engine; one thread.
template <typename V>
__device__ void load_contiguous(const Arguments& arguments, Shared<V::stages>& shared) {
  const Problem& a = arguments.problem;
  Ring<V::stages> stage;
  for (Ring<2> slot;; slot.next()) {
    barrier_wait<V::watch>(&shared.full_query[slot.index], slot.phase);
    const CudaJob& job = shared.slots[slot.index].job;
    const int32_t blocks = job.blocks;
    if (blocks < 0) return;
    const int kv_head = job.head / a.group;
    Cursor<block_keys> cursor(a.plan, job);
    barrier_arrive(&shared.empty_query[slot.index]);
    for (int32_t block = 0; block < blocks; ++block) {
      const BlockInfo info = cursor.info();
      barrier_wait<V::watch>(&shared.empty_key[stage.index], stage.phase ^ 1);
      shared.blocks[stage.index] = info;
      barrier_arrive_expect(&shared.full_key[stage.index], tile_bytes);
      copy_box(shared.keys[stage.index], &arguments.keys, &shared.full_key[stage.index], 0,
               info.begin, 0, kv_head);
      barrier_wait<V::watch>(&shared.empty_value[stage.index], stage.phase ^ 1);
      barrier_arrive_expect(&shared.full_value[stage.index], tile_bytes);
      copy_box(shared.values[stage.index], &arguments.values, &shared.full_value[stage.index], 0,
               info.begin, 0, kv_head);
      stage.next();
      cursor.advance();
    }
  }
}

// Copies any keys and values: contiguous ones as above, others row by row. Three warps, of which
// every thread announces what it has copied.
template <typename V>
__device__ void load_any(const Arguments& arguments, Shared<V::stages>& shared) {
  const Problem& a = arguments.problem;
  constexpr int count = V::key_warps * 32;
  const int thread = static_cast<int>(threadIdx.x);
  const int piece = thread & 15;
  // Columns whose rows of memory this thread looks up: `thread`, and one more in the last warp.
  const int second = thread >= count - (block_keys - count) ? thread + block_keys - count : -1;
  Ring<V::stages> stage;
  uint64_t* pending = nullptr;  // a row-wise copy that has not been announced yet
  const auto announce = [&] {
    fence_async();
    barrier_arrive(pending);
    pending = nullptr;
  };
  const auto flush = [&] {
    if (pending == nullptr) return;
    copy_wait<0>();
    announce();
  };
  // Waits for a free buffer without keeping a finished copy back.
  const auto wait_free = [&](uint64_t* barrier, uint32_t parity) {
    if (barrier_try(barrier, parity)) return;
    flush();
    barrier_wait<V::watch>(barrier, parity);
  };
  const auto copy_rows = [&](const int32_t* rows, __nv_bfloat16* tile, const void* data,
                             int64_t offset, int64_t stride, int32_t valid, uint64_t* barrier) {
    const uint32_t base = shared_address(tile);
    const auto* from = static_cast<const __nv_bfloat16*>(data) + offset + piece * 8;
#pragma unroll 4
    for (int row = thread >> 4; row < block_keys; row += count / 16) {
      copy_16(base + swizzled(row, piece), from + rows[row] * stride, row < valid ? 16 : 0);
    }
    copy_commit();
    if (pending != nullptr) {
      copy_wait<1>();
      announce();
    }
    pending = barrier;
  };
  const auto copy_tile = [&](void* tile, const CUtensorMap* map, uint64_t* barrier, int32_t begin,
                             int kv_head) {
    if (thread == 0) {
      barrier_arrive_expect(barrier, tile_bytes);
      copy_box(tile, map, barrier, 0, begin, 0, kv_head);
    } else {
      barrier_arrive(barrier);
    }
  };
  __shared__ int32_t rows[2][block_keys];
  int turn = 0;
  for (Ring<2> slot;; slot.next()) {
    barrier_wait<V::watch>(&shared.full_query[slot.index], slot.phase);
    const CudaJob& job = shared.slots[slot.index].job;
    const int32_t blocks = job.blocks;
    if (blocks < 0) break;
    const int kv_head = job.head / a.group;
    Cursor<block_keys> cursor(a.plan, job);
    barrier_arrive(&shared.empty_query[slot.index]);
    // Rows of the next block are looked up while the present one is copied.
    BlockInfo info = cursor.info();
    int32_t found[2] = {0, 0};
    const auto look_up = [&] {
      if (info.stride == 1 || info.valid == 0) return;
      found[0] = cursor.row_of(a.plan, info, thread);
      if (second >= 0) found[1] = cursor.row_of(a.plan, info, second);
    };
    look_up();
    for (int32_t block = 0; block < blocks; ++block) {
      const BlockInfo now = info;
      const bool contiguous = now.stride == 1;
      if (!contiguous) {
        rows[turn][thread] = found[0];
        if (second >= 0) rows[turn][second] = found[1];
      }
      if (block + 1 < blocks) {
        cursor.advance();
        info = cursor.info();
        look_up();
      }
      if (!contiguous) named_sync(barrier_keys, count);
      wait_free(&shared.empty_key[stage.index], stage.phase ^ 1);
      if (thread == 0) shared.blocks[stage.index] = now;
      if (now.kind == block_listed) {
        for (int i = thread; i < block_keys; i += count) {
          shared.listed[stage.index][i] =
              i < now.full ? -1 : (i < now.valid ? rows[turn][i] : 0x7fffffff);
        }
      }
      if (contiguous) {
        flush();
        copy_tile(shared.keys[stage.index], &arguments.keys, &shared.full_key[stage.index],
                  now.begin, kv_head);
      } else {
        copy_rows(rows[turn], shared.keys[stage.index], a.keys, kv_head * a.key_head_stride,
                  a.key_stride, now.valid, &shared.full_key[stage.index]);
      }
      wait_free(&shared.empty_value[stage.index], stage.phase ^ 1);
      if (contiguous) {
        copy_tile(shared.values[stage.index], &arguments.values, &shared.full_value[stage.index],
                  now.begin, kv_head);
      } else {
        copy_rows(rows[turn], shared.values[stage.index], a.values, kv_head * a.value_head_stride,
                  a.value_stride, now.valid, &shared.full_value[stage.index]);
        turn ^= 1;
      }
      stage.next();
    }
    flush();
  }
}

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

// Scores become weights in place; returns the factor for what was summed so far.
__device__ inline void weigh(float (&s)[64], RowState& state, float factor,
                             float (&correction)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float high = state.max[r];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      high = fmaxf(high, fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]));
    }
    high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 1));
    high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 2));
    const float base = high == -INFINITY ? 0.0f : high * factor;
    correction[r] = exp2_fast(state.max[r] * factor - base);
    state.max[r] = high;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float& x = s[4 * i + 2 * r];
      float& y = s[4 * i + 2 * r + 1];
      x = exp2_fast(fmaf(x, factor, -base));
      y = exp2_fast(fmaf(y, factor, -base));
      sum += x + y;
    }
    state.sum[r] = fmaf(state.sum[r], correction[r], sum);
  }
}

__device__ inline void narrow(const float (&s)[64], uint32_t (&p)[32]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
}

__device__ inline void rescale(float (&o)[64], const float (&correction)[2]) {
#pragma unroll
  for (int i = 0; i < 64; ++i) o[i] *= correction[(i >> 1) & 1];
}

// s = Q Kᵀ of one warpgroup
__device__ inline void multiply_keys(float (&s)[64], uint64_t queries, uint64_t keys) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const uint64_t step = static_cast<uint64_t>((k >> 2) * (half_tile * 2 >> 4) + (k & 3) * 2);
    mma_shared(s, queries + step, keys + step, k > 0);
  }
}

// o (+)= P V
__device__ inline void multiply_values(float (&o)[64], const uint32_t (&p)[32], uint64_t values,
                                       bool accumulate) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    mma_registers(o, p + 4 * k, values + static_cast<uint64_t>(k * (16 * 128 >> 4)),
                  k > 0 || accumulate);
  }
}

// Normalises and writes the rows of a job.
__device__ inline void finish(const Problem& a, const JobSlot& slot, const float (&o)[64],
                              const RowState& state, int first_row, int column) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = state.sum[r];
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    sum += __shfl_xor_sync(0xffffffff, sum, 2);
    const int row = first_row + 8 * r;
    if (row >= slot.job.rows) continue;
    finish_quad_row<16>(a, slot.job, row, slot.place[row].x, slot.place[row].y, column,
                        state.max[r] * a.scale, sum, [&](int i) {
                          return float2{o[4 * i + 2 * r], o[4 * i + 2 * r + 1]};
                        });
  }
}

template <typename V>
__device__ void consume(const Problem& a, Shared<V::stages>& shared) {
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
  if (V::ping_pong && group == 1) named_arrive(other, 256);

  float o[64], s[64];
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

    const auto mask = [&] {
      const BlockInfo info = shared.blocks[key.index];
      if (info.kind != block_full) hide(s, info, shared.listed[key.index], limit, column);
    };
    if (blocks == 0) {
#pragma unroll
      for (int i = 0; i < 64; ++i) o[i] = 0;
    } else if constexpr (V::overlap) {
      barrier_wait<V::watch>(&shared.full_key[key.index], key.phase);
      mma_fence();
      multiply_keys(s, queries, tile_descriptor(shared.keys[key.index], 16));
      mma_commit();
      mma_wait<0>(s);
      mask();
      release(&shared.empty_key[key.index]);
      key.next();
      weigh(s, state, factor, correction);
      narrow(s, p);
      for (int32_t block = 1; block < blocks; ++block) {
        barrier_wait<V::watch>(&shared.full_key[key.index], key.phase);
        if (V::ping_pong) named_sync(own, 256);
        mma_fence();
        multiply_keys(s, queries, tile_descriptor(shared.keys[key.index], 16));
        mma_commit();
        barrier_wait<V::watch>(&shared.full_value[value.index], value.phase);
        mma_fence();
        multiply_values(o, p, tile_descriptor(shared.values[value.index], half_tile * 2),
                        block > 1);
        mma_commit();
        if (V::ping_pong) named_arrive(other, 256);
        mma_wait<1>(s);
        mask();
        release(&shared.empty_key[key.index]);
        key.next();
        weigh(s, state, factor, correction);
        // Never true. Without a branch the assembler moves the wait above the arithmetic that it
        // shall overlap with.
        if (fminf(state.sum[0], state.sum[1]) < 0) __nanosleep(1);
        mma_wait<0>(o);
        release(&shared.empty_value[value.index]);
        value.next();
        narrow(s, p);
        if (!V::skip_rescale ||
            __any_sync(0xffffffff, correction[0] != 1.0f || correction[1] != 1.0f)) {
          rescale(o, correction);
        }
      }
      barrier_wait<V::watch>(&shared.full_value[value.index], value.phase);
      mma_fence();
      multiply_values(o, p, tile_descriptor(shared.values[value.index], half_tile * 2), blocks > 1);
      mma_commit();
      mma_wait<0>(o);
      release(&shared.empty_value[value.index]);
      value.next();
    } else {
      for (int32_t block = 0; block < blocks; ++block) {
        barrier_wait<V::watch>(&shared.full_key[key.index], key.phase);
        if (V::ping_pong) named_sync(own, 256);
        mma_fence();
        multiply_keys(s, queries, tile_descriptor(shared.keys[key.index], 16));
        mma_commit();
        if (V::ping_pong) named_arrive(other, 256);
        mma_wait<0>(s);
        mask();
        release(&shared.empty_key[key.index]);
        key.next();
        weigh(s, state, factor, correction);
        narrow(s, p);
        if (block > 0) rescale(o, correction);
        barrier_wait<V::watch>(&shared.full_value[value.index], value.phase);
        mma_fence();
        multiply_values(o, p, tile_descriptor(shared.values[value.index], half_tile * 2),
                        block > 0);
        mma_commit();
        mma_wait<0>(o);
        release(&shared.empty_value[value.index]);
        value.next();
      }
    }
    finish(a, job, o, state, first_row, column);
    release(&shared.empty_query[slot.index]);
  }
}

template <typename V>
__global__ void __launch_bounds__(threads, 1) attend(const __grid_constant__ Arguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)  // other architectures get an empty kernel
  extern __shared__ char memory[];
  auto& shared = *reinterpret_cast<Shared<V::stages>*>(
      memory + (1024 - (shared_address(memory) & 1023)) % 1024);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      barrier_init(&shared.full_query[i], 128 - V::key_warps * 32);
      barrier_init(&shared.empty_query[i], 8 + V::key_arrivals);
    }
    for (int i = 0; i < V::stages; ++i) {
      barrier_init(&shared.full_key[i], V::key_arrivals);
      barrier_init(&shared.empty_key[i], 8);
      barrier_init(&shared.full_value[i], V::key_arrivals);
      barrier_init(&shared.empty_value[i], 8);
    }
    barrier_init_visible();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    registers_fewer<V::producer_registers>();
    if (threadIdx.x >= V::key_warps * 32) {
      load_queries<V>(a.problem, shared);
    } else if constexpr (V::gather) {
      load_any<V>(a, shared);
    } else if (threadIdx.x == 0) {
      load_contiguous<V>(a, shared);
    }
  } else {
    registers_more<V::consumer_registers>();
    consume<V>(a.problem, shared);
  }
#endif
}

}  // namespace kinora::hopper
