// The producer of the Hopper kernel for lists of rows that lie anywhere.
#pragma once

#include "attention/cuda/hopper_producer.cuh"

namespace kinora::hopper {

// Copies any keys and values: affine ones as boxes, others row by row. Runs on three warps; every
// thread announces what it has copied.
template <typename V>
__device__ void load_any(const StridedArguments& arguments, Shared<V>& shared) {
  const Problem& a = arguments.all.problem;
  constexpr int count = V::copy_warps * 32;
  const int thread = static_cast<int>(threadIdx.x);
  // Sixteen threads, a team, copy one row of 128 columns or two of 64; the six teams have the rows
  // of one place in every eight each, and share out those of the two that are left over. A team's
  // rows thus have the same swizzle, and lie 8 or 24 apart.
  static_assert(count / 16 == 6 && block_keys == 128);
  constexpr int at_once = 2 / V::halves;  // rows of a team
  const int piece = thread % V::row_pieces, team = thread >> 4;
  const int own_row = thread / V::row_pieces % at_once;
  const int first = team + own_row * 8;                              // 16 rows of a team, 8 apart
  const int rest = (team >> 1) * 8 + 6 + (team & 1) + own_row * 24;  // up to 6 rows, 24 apart
  const int rest_count = (team < 2 ? 6 : 5) - own_row;
  // Columns whose rows of memory this thread looks up: `thread`, and one more in the last warp.
  const int second = thread >= count - (block_keys - count) ? thread + block_keys - count : -1;
  const uint32_t key_bytes = static_cast<uint32_t>(a.key_stride) * 2;
  const uint32_t value_bytes = static_cast<uint32_t>(a.value_stride) * 2;
  Ring<V::stages> stage;
  // All rows of a batch are known before its first copy, so that the copies follow one another at
  // once. Columns without a key repeat a row.
  const auto copy_rows = [&](const int32_t* rows, __nv_bfloat16* tile, const char* from,
                             uint32_t row_bytes, uint64_t* barrier) {
    const uint32_t target = shared_address(tile) + swizzled(first, piece);
    const uint32_t rest_target = shared_address(tile) + swizzled(rest, piece);
    constexpr int batch = 8;
    uint32_t own[batch];
    const auto copy = [&](uint32_t to, uint32_t row) {
      copy_16(to, from + uint64_t{row} * row_bytes);
    };
#pragma unroll
    for (int begin = 0; begin < 16; begin += batch * at_once) {
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        own[i] = static_cast<uint32_t>(rows[first + (begin + i * at_once) * 8]);
      }
#pragma unroll
      for (int i = 0; i < batch; ++i) copy(target + (begin + i * at_once) * 8 * 128, own[i]);
    }
#pragma unroll
    for (int i = 0; i < 6; i += at_once) {
      if (i < rest_count) own[i] = static_cast<uint32_t>(rows[rest + i * 24]);
    }
#pragma unroll
    for (int i = 0; i < 6; i += at_once) {
      if (i < rest_count) copy(rest_target + i * 24 * 128, own[i]);
    }
    arrive_with_copies(barrier);
  };
  const auto copy_tile = [&](const BlockInfo& info, int32_t map, bool keys, void* tile,
                             uint64_t* barrier, int kv_head) {
    if (thread == 0) {
      const AffinePlace at = find_place(arguments, map, info);
      barrier_arrive_expect(barrier, V::tile_bytes);
      copy_affine(arguments, at, keys, tile, barrier, kv_head);
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
    const char* keys = reinterpret_cast<const char*>(static_cast<const __nv_bfloat16*>(a.keys) +
                                                     kv_head * a.key_head_stride + piece * 8);
    const char* values = reinterpret_cast<const char*>(static_cast<const __nv_bfloat16*>(a.values) +
                                                       kv_head * a.value_head_stride + piece * 8);
    // Rows of the next block are looked up while the current one is copied.
    BlockInfo info = cursor.info();
    int32_t map = 0;  // −1: row by row
    int32_t found[2] = {0, 0};
    const auto look_up = [&] {
      map = info.stride > 0 ? cursor.segment.shift : -1;
      if (map >= 0 || info.valid == 0) return;
      found[0] = cursor.row_of(a.plan, info, thread);
      if (second >= 0) found[1] = cursor.row_of(a.plan, info, second);
    };
    look_up();
    for (int32_t block = 0; block < blocks; ++block) {
      const BlockInfo now = info;
      const int32_t now_map = map;
      const bool by_box = now_map >= 0;
      if (!by_box) {
        rows[turn][thread] = found[0];
        if (second >= 0) rows[turn][second] = found[1];
      }
      if (block + 1 < blocks) {
        cursor.advance();
        info = cursor.info();
        look_up();
      }
      if (!by_box) named_sync(barrier_keys, count);
      barrier_wait<V::watch>(&shared.empty_key[stage.index], stage.phase ^ 1);
      if (thread == 0) shared.blocks[stage.index] = now;
      if (now.kind == block_listed) {
        for (int i = thread; i < block_keys; i += count) {
          shared.listed[stage.index][i] =
              i < now.full ? -1 : (i < now.valid ? rows[turn][i] : 0x7fffffff);
        }
      }
      if (by_box) {
        copy_tile(now, now_map, true, shared.keys[stage.index], &shared.full_key[stage.index],
                  kv_head);
      } else {
        copy_rows(rows[turn], shared.keys[stage.index], keys, key_bytes,
                  &shared.full_key[stage.index]);
      }
      barrier_wait<V::watch>(&shared.empty_value[stage.index], stage.phase ^ 1);
      if (by_box) {
        copy_tile(now, now_map, false, shared.values[stage.index], &shared.full_value[stage.index],
                  kv_head);
      } else {
        copy_rows(rows[turn], shared.values[stage.index], values, value_bytes,
                  &shared.full_value[stage.index]);
        turn ^= 1;
      }
      stage.next();
    }
  }
  copy_commit();
  copy_wait<0>();
}

}  // namespace kinora::hopper
