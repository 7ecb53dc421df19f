// The decode kernel (decode_cuda.h) for many (token, head) pairs of a kv head on Hopper (sm_90a),
// head size 128, bf16 rows: trees of tokens, several tokens of several sequences. A block of one
// producer warpgroup, half of which copies keys into shared memory and half values, and two
// consumer warpgroups of 64 pairs each, which compute as those of the prefill kernel do
// (hopper_kernel.cuh). Where a tile has no more than 64 pairs both take the same ones and every
// second block of rows. join_pairs joins the parts. decode_many_cuda.cu launches it.
#pragma once

#include "attention/cuda/decode/decode_join_cuda.cuh"
#include "attention/cuda/hopper_consumer.cuh"

namespace kinora::hopper {

constexpr int head_size = 128;
constexpr int many_stages = 3;
constexpr int many_pairs = 2 * group_rows;  // of a tile
constexpr int barrier_stretch = barrier_queries + 2;

struct ManyShared {
  __nv_bfloat16 queries[2 * half_tile];
  __nv_bfloat16 rows[2][many_stages][2 * half_tile];  // keys, values
  uint64_t full[2][many_stages], empty[2][many_stages];
  float weights[2][block_keys];  // what they add to the scores of a warpgroup's block
  SequenceStarts starts;
};

// Which tile of pairs and which part of the rows a block has.
struct ManyPlace {
  int32_t tile;
  int32_t part;
  int32_t kv_head;

  __device__ ManyPlace(const PairTiles& tiles, int32_t block, int32_t head) : kv_head(head) {
    const int32_t ahead = tiles.full * tiles.parts;
    tile = block < ahead ? block / tiles.parts : tiles.full;
    part = block < ahead ? block % tiles.parts : block - ahead;
  }
};

// All memory around the sets of rows, as one tensor of the copy engine: (64 columns, 128 rows,
// stretches of 128 bytes, 2³⁰ of these). Its axes overlap: a box is the rows that follow any
// address. Where a set lies is only known on the device, and a tensor for each would have to be
// made there.
struct AllMemory {
  CUtensorMap map;
  const char* begin;
};
constexpr int stretch_bits = 7, region_bits = 30;
constexpr int64_t memory_regions = 64;

// 128 rows of a kv head by the copy engine, from an address on; by all who copy keys or values.
// False, with nothing done, where the address is out of its reach.
__device__ inline bool copy_rows(const AllMemory& memory, const __nv_bfloat16* from, void* tile,
                                 uint64_t* full, int thread) {
  const int64_t offset = reinterpret_cast<const char*>(from) - memory.begin;
  const int64_t stretch = offset >> stretch_bits;
  if (offset < 0 || (offset & ((1 << stretch_bits) - 1)) != 0 ||
      stretch >> region_bits >= memory_regions) {
    return false;
  }
  if (thread == 0) {
    barrier_arrive_expect(full, half_tile * 2 * sizeof(__nv_bfloat16));
    copy_box(tile, &memory.map, full, 0, 0,
             static_cast<int32_t>(stretch & ((1 << region_bits) - 1)),
             static_cast<int32_t>(stretch >> region_bits));
  } else if (thread % 32 == 0) {
    barrier_arrive(full);
  }
  return true;
}

constexpr int copy_threads = 64;  // of keys, and as many of values

// Half of the producer warpgroup: neither keys nor values wait for a buffer of the other. A block's
// keys are read a block sooner than its values, so their buffers are free sooner.
__device__ inline void load_many(const DecodeArguments& a, const AllMemory& memory, Walk walk,
                                 const ManyPlace& where, ManyShared& shared) {
  // Keys or values; asked of a lane, so that the compiler knows that a warp agrees.
  const int which = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / copy_threads, 0);
  const int thread = static_cast<int>(threadIdx.x) % copy_threads;
  const int piece = thread & 7, own_row = thread >> 3;
  const int64_t row_stride = int64_t{a.kv_heads} * head_size;
  // Rows [first, first + 128) of the sequence; zeros from `end` on and where a set has no more.
  // Rows that follow one another come by the copy engine. Otherwise a thread has two pieces, one of
  // each half, of every eighth row, so that its place in the swizzled tile only moves on; the next
  // block is asked for before these have come.
  uint64_t* coming = nullptr;  // the barrier of a block that threads copy
  const auto finish_coming = [&] {
    fence_async();
    __syncwarp();
    if (thread % 32 == 0) barrier_arrive(coming);
    coming = nullptr;
  };
  const auto copy = [&](const DeviceSequence& sequence, SetCursor& at, int32_t first, int32_t end,
                        int stage) {
    uint64_t* full = &shared.full[which][stage];
    auto* tile = shared.rows[which][stage];
    const auto rows_of = [&](const DeviceRowSet& set) {
      return static_cast<const __nv_bfloat16*>(which == 1 ? set.values : set.keys) +
             where.kv_head * head_size;
    };
    at.seek(sequence, first);
    {
      const DeviceRowSet& set = sequence.sets[at.index];
      const int32_t place = first - at.begin;
      if (set.list == nullptr && place + block_keys <= static_cast<int32_t>(set.count) &&
          first + block_keys <= end &&
          copy_rows(memory, rows_of(set) + place * row_stride, tile, full, thread)) {
        if (coming != nullptr) {
          copy_wait<0>();
          finish_coming();
        }
        return;
      }
    }
    static_assert(copy_threads == 8 * 8);
    const uint32_t target = shared_address(tile) + swizzled(own_row, piece);
#pragma unroll 1
    for (int share = 0; share < block_keys; share += decode_share) {
      if (first + share < end) at.seek(sequence, first + share);
      const DeviceRowSet& set = sequence.sets[at.index];
      const int32_t* list = set.list;
      const __nv_bfloat16* rows = rows_of(set) + piece * 8;
      const int32_t begin = first + share - at.begin;
      const int32_t left = first + share < end ? static_cast<int32_t>(set.count) - begin : 0;
#pragma unroll
      for (int row = 0; row < decode_share; row += 8) {
        const bool inside = row + own_row < left;
        int32_t from = inside ? begin + row + own_row : 0;
        if (list != nullptr) from = list[from];
        const __nv_bfloat16* at_row = rows + from * row_stride;
        const uint32_t to = target + (share + row) * 128, bytes = inside ? 16 : 0;
        copy_16(to, at_row, bytes);
        copy_16(to + half_tile * 2, at_row + 64, bytes);
      }
    }
    copy_commit();
    if (coming != nullptr) {
      copy_wait<1>();
      finish_coming();
    }
    coming = full;
  };

  bool waited = false;
  Ring<many_stages> stage;
  for (Stretch stretch; walk.next(stretch);) {
    const DeviceSequence& sequence = a.sequences[stretch.sequence];
    if (sequence.tokens * (a.heads / a.kv_heads) <= where.tile * many_pairs) continue;
    const int32_t old_end = waited ? 0 : old_rows_end(sequence, stretch.begin, stretch.end);
    SetCursor at;
#pragma unroll 1
    for (int32_t first = stretch.begin; first < stretch.end; first += block_keys) {
      // Old rows were there before the kernel that makes the queries and the new rows.
      if (!waited && first + block_keys > old_end) {
        cuda::wait_for_previous();
        waited = true;
      }
      barrier_wait<false>(&shared.empty[which][stage.index], stage.phase ^ 1);
      copy(sequence, at, first, stretch.end, stage.index);
      stage.next();
    }
  }
  if (coming != nullptr) {
    copy_wait<0>();
    finish_coming();
  }
}

// Queries of pairs [first, first + 64) of a sequence, which the kernel before may still make; by a
// consumer warpgroup, which owns 64 rows of the tile. Rows without a pair are zero. Queries in bf16
// are all on their way before the first has come.
__device__ inline void load_many_queries(const DecodeArguments& a, const DecodePairs& pairs,
                                         int first, ManyShared& shared, int group) {
  constexpr int each = group_rows / 8;
  const int thread = static_cast<int>(threadIdx.x) & 127;
  const int piece = thread & 15, own_row = thread >> 4;
  char* target =
      reinterpret_cast<char*>(shared.queries) + swizzled(group * group_rows + own_row, piece);
  const auto place_of = [&](int pair) {
    return pairs.token(pair) * a.query_stride + pairs.head(pair) * a.query_head_stride + piece * 8;
  };
  const auto put = [&](int row, const uint4& packed) {
    *reinterpret_cast<uint4*>(target + row * 8 * 128) = packed;
  };
  if (a.queries_f32) {
    cuda::wait_for_previous();
#pragma unroll 1
    for (int row = 0; row < each; ++row) {
      const int pair = first + row * 8 + own_row;
      uint4 packed{};
      if (pair < pairs.count) {
        const auto* from =
            reinterpret_cast<const float4*>(static_cast<const float*>(a.queries) + place_of(pair));
        const float4 low = from[0], high = from[1];
        packed = {pack_bf16(low.x, low.y), pack_bf16(low.z, low.w), pack_bf16(high.x, high.y),
                  pack_bf16(high.z, high.w)};
      }
      put(row, packed);
    }
  } else {
    const uint4* from[each];
#pragma unroll
    for (int row = 0; row < each; ++row) {
      from[row] = reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(a.queries) +
                                                 place_of(first + row * 8 + own_row));
    }
    cuda::wait_for_previous();
    uint4 packed[each];
#pragma unroll
    for (int row = 0; row < each; ++row) {
      packed[row] = first + row * 8 + own_row < pairs.count ? __ldcg(from[row]) : uint4{};
    }
#pragma unroll
    for (int row = 0; row < each; ++row) put(row, packed[row]);
  }
  fence_async();
  named_sync(barrier_queries + group, 128);
}

// Writes what a warpgroup has of pairs [first, first + 64) to a slot.
__device__ inline void finish_many(const DecodeArguments& a, const DecodePairs& pairs, int first,
                                   int slot, const float (&o)[64], const RowState& state,
                                   int first_row, int column) {
  const int64_t all_pairs = int64_t{a.tokens} * a.heads;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = state.sum[r];
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    sum += __shfl_xor_sync(0xffffffff, sum, 2);
    const int pair = first + first_row + 8 * r;
    if (pair >= pairs.count) continue;
    const int64_t at = slot * all_pairs + pairs.place(pair);
    float* out = a.part_out + at * head_size + column;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      *reinterpret_cast<float2*>(out + i * 8) = float2{o[4 * i + 2 * r], o[4 * i + 2 * r + 1]};
    }
    if (column == 0) {
      a.part_max[at] = state.max[r] * a.factor;
      a.part_sum[at] = sum;
    }
  }
}

// A consumer warpgroup.
__device__ inline void consume_many(const DecodeArguments& a, Walk walk, const ManyPlace& where,
                                    ManyShared& shared) {
  const int thread = static_cast<int>(threadIdx.x) - 128;
  const int group = thread >> 7;
  const int lane = thread & 31;
  const int first_row = ((thread >> 5) & 3) * 16 + (lane >> 2);  // of the warpgroup's 64
  const int column = (lane & 3) * 2;
  const int own = barrier_first_group + group;
  const int other = barrier_first_group + (group ^ 1);
  if (group == 1) named_arrive(other, 256);

  const uint64_t queries = tile_descriptor(shared.queries + group * group_rows * 64, 16);
  float o[64], s[64];
  uint32_t p[32];
  uint32_t passed = 0;  // blocks of rows before those of the stretch
  for (Stretch stretch; walk.next(stretch);) {
    const DeviceSequence& sequence = a.sequences[stretch.sequence];
    const DecodePairs pairs(a, sequence, where.kv_head);
    const int32_t pair_count = pairs.count - where.tile * many_pairs;
    if (pair_count <= 0) continue;
    const bool halved = pair_count <= group_rows;
    const int first_pair = where.tile * many_pairs + (halved ? 0 : group * group_rows);
    // Nobody reads the last queries any more. And all rows so far have been there: only then does a
    // warpgroup that left some of them to the other one know which phase of a barrier it waits for.
    named_sync(barrier_stretch, 256);
    load_many_queries(a, pairs, first_pair, shared, group);

    const int32_t end = stretch.end;
    const int32_t blocks = (end - stretch.begin + block_keys - 1) / block_keys;
    const int32_t step = halved ? 2 : 1;
    int32_t block = halved ? group : 0;
    const auto stage_of = [&](int32_t number) { return (passed + number) % many_stages; };
    const auto wait_full = [&](uint64_t(&barriers)[many_stages], int32_t number) {
      const uint32_t at = passed + static_cast<uint32_t>(number);
      barrier_wait<false>(&barriers[at % many_stages], at / many_stages & 1);
    };
    const auto release = [&](uint64_t* barrier) {
      __syncwarp();
      if (lane != 0) return;
      barrier_arrive(barrier);
      if (halved) barrier_arrive(barrier);  // for the other warpgroup
    };
    SetCursor now;
    int32_t plain_end = 0;
    if (block < blocks) {
      now.seek(sequence, stretch.begin + block * block_keys);
      plain_end = min(end, plain_rows_end(sequence, now));
    }
    // Adds weights and hides the scores of rows that are not seen.
    const auto mask = [&] {
      const int32_t first = stretch.begin + block * block_keys;
      if (first + block_keys <= plain_end) return;
      bool weighted = false;
      for (SetCursor at = now;;) {  // all sets of the block
        weighted |= sequence.sets[at.index].weights != nullptr;
        if (at.next >= min(end, first + block_keys)) break;
        at.seek(sequence, at.next);
      }
      if (weighted) {
        float* weights = shared.weights[group];
        named_sync(barrier_queries + group, 128);  // the last ones have been read
        const int32_t row = first + (thread & 127);
        float weight = 0;
        if (row < end) {
          SetCursor at = now;
          at.seek(sequence, row);
          weight = row_weight(sequence, at, row, 0) / a.factor;
        }
        weights[thread & 127] = weight;
        named_sync(barrier_queries + group, 128);
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          const float2 more = *reinterpret_cast<const float2*>(weights + i * 8 + column);
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            s[4 * i + 2 * r] += more.x;
            s[4 * i + 2 * r + 1] += more.y;
          }
        }
      }
      // The four lanes of a row look at a share each.
      const int32_t own_row = first + (lane & 3) * decode_share;
      uint32_t own_seen[2] = {0, 0};
      if (own_row < end) {
        now.seek(sequence, own_row);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int pair = min(first_pair + first_row + 8 * r, pairs.count - 1);
          const int32_t token = pairs.token(pair);
          own_seen[r] =
              rows_seen(sequence, now, own_row, token - pairs.first_token, a.masks[token]);
        }
      }
#pragma unroll
      for (int share = 0; share < block_keys / decode_share; ++share) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const uint32_t seen = __shfl_sync(0xffffffff, own_seen[r], (lane & ~3) + share) >> column;
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            float& x = s[(share * 4 + i / 2) * 4 + 2 * r + i % 2];
            if ((seen >> (i / 2 * 8 + i % 2) & 1) == 0) x = -INFINITY;
          }
        }
      }
      // As lanes have gone on to different sets, all go on to the last one.
      now.seek(sequence, min(first + block_keys, end) - decode_share);
      plain_end = min(end, plain_rows_end(sequence, now));
    };
    RowState state{{-INFINITY, -INFINITY}, {0, 0}};
    float correction[2];
    if (block >= blocks) {
#pragma unroll
      for (int i = 0; i < 64; ++i) o[i] = 0;
    } else {
      wait_full(shared.full[0], block);
      mma_fence();
      multiply_keys(s, queries, tile_descriptor(shared.rows[0][stage_of(block)], 16));
      mma_commit();
      mma_wait<0>(s);
      mask();
      release(&shared.empty[0][stage_of(block)]);
      weigh(s, state, a.factor, correction);
      narrow(s, p);
      int32_t last = block;
      for (block += step; block < blocks; block += step) {
        wait_full(shared.full[0], block);
        named_sync(own, 256);
        mma_fence();
        multiply_keys(s, queries, tile_descriptor(shared.rows[0][stage_of(block)], 16));
        mma_commit();
        wait_full(shared.full[1], last);
        mma_fence();
        multiply_values(o, p, tile_descriptor(shared.rows[1][stage_of(last)], half_tile * 2),
                        last >= step);
        mma_commit();
        named_arrive(other, 256);
        mma_wait<1>(s);
        mask();
        release(&shared.empty[0][stage_of(block)]);
        weigh(s, state, a.factor, correction);
        // Never true. Without a branch the assembler moves the wait above the arithmetic that it
        // is meant to overlap with.
        if (fminf(state.sum[0], state.sum[1]) < 0) __nanosleep(1);
        mma_wait<0>(o);
        release(&shared.empty[1][stage_of(last)]);
        narrow(s, p);
        if (__any_sync(0xffffffff, correction[0] != 1.0f || correction[1] != 1.0f)) {
          rescale(o, correction);
        }
        last = block;
      }
      wait_full(shared.full[1], last);
      mma_fence();
      multiply_values(o, p, tile_descriptor(shared.rows[1][stage_of(last)], half_tile * 2),
                      last >= step);
      mma_commit();
      mma_wait<0>(o);
      release(&shared.empty[1][stage_of(last)]);
    }
    // The other warpgroup has one more block, and its own turn to take.
    if (halved && group == 1 && blocks > 1 && blocks % 2 == 1) {
      named_sync(own, 256);
      named_arrive(other, 256);
    }
    const int slot = halved ? 2 * where.part + group : where.part;
    finish_many(a, pairs, first_pair, slot, o, state, first_row, column);
    passed += static_cast<uint32_t>(blocks);
  }
  cuda::wait_for_previous();  // no kernel ends before those that came before it
}

// grid: (parts of all tiles, kv heads)
template <int = 0>
__global__ void __launch_bounds__(threads, 1)
    decode_many(const __grid_constant__ DecodeArguments a, const __grid_constant__ PairTiles tiles,
                const __grid_constant__ AllMemory memory) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)  // other architectures get an empty kernel
  extern __shared__ char room[];
  auto& shared =
      *reinterpret_cast<ManyShared*>(room + (1024 - (shared_address(room) & 1023)) % 1024);
  cuda::let_next_start();
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int i = 0; i < 2 * many_stages; ++i) {
      barrier_init(&shared.full[0][0] + i, copy_threads / 32);
      barrier_init(&shared.empty[0][0] + i, 8);
    }
    barrier_init_visible();
  }
  __syncthreads();
  const ManyPlace where(tiles, static_cast<int32_t>(blockIdx.x), static_cast<int32_t>(blockIdx.y));
  const Walk walk(a, shared.starts, where.part, tiles.parts_of(where.tile),
                  block_keys / decode_share);
  if (threadIdx.x < 128) {
    registers_fewer<40>();
    load_many(a, memory, walk, where, shared);
  } else {
    registers_more<232>();
    consume_many(a, walk, where, shared);
  }
#endif
}

}  // namespace kinora::hopper
