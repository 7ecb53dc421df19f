// The producer warpgroup of the Hopper kernel: takes jobs, and brings queries, keys and values into
// shared memory.
#pragma once

#include "attention/cuda/hopper_layout.cuh"

namespace kinora::hopper {

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

// How the four pieces of a block are copied: the fewer boxes, the less the copy engine has to do.
enum class Boxes { whole, pairs, single };

// Copies pieces of up to 32 adjacent keys, four to a block, columns from their copies, and
// contiguous keys; one warp, whose lanes all announce what they have copied. Boxes outside memory
// are filled with zeros.
template <typename V>
__device__ void load_pieces(const PieceArguments& arguments, Shared<V::stages>& shared) {
  constexpr uint32_t all = 0xffffffffu;
  constexpr int pieces = block_keys / piece_keys;
  const Problem& a = arguments.all.problem;
  const int lane = static_cast<int>(threadIdx.x);
  // Lanes 2 p and 2 p + 1 have the two halves of piece p.
  const int piece = (lane >> 1) % pieces;
  const int half = lane & 1;
  Ring<V::stages> stage;
  for (Ring<2> slot;; slot.next()) {
    barrier_wait<V::watch>(&shared.full_query[slot.index], slot.phase);
    const CudaJob& job = shared.slots[slot.index].job;
    const int32_t blocks = job.blocks, low = job.low;
    if (blocks < 0) return;
    const int kv_head = job.head / a.group;
    Cursor<block_keys> cursor(a.plan, job);
    barrier_arrive(&shared.empty_query[slot.index]);
    // A lane's own piece of the block that the cursor is at.
    const auto find_piece = [&] {
      CudaPiece found{arguments.row_count, 0};
      if (cursor.segment.stride == piece_stride &&
          cursor.at + piece * piece_keys < cursor.segment.count) {
        found = a.plan.pieces[cursor.segment.begin + cursor.at / piece_keys + piece];
        found.begin += cursor.segment.shift;
      }
      return found;
    };
    CudaPiece own = find_piece();
    for (int32_t block = 0; block < blocks; ++block) {
      BlockInfo info = cursor.info();
      // The first row of the lane's box; the lanes that have one come first.
      int32_t begin = info.begin;
      Boxes boxes = Boxes::whole;
      if (info.stride == piece_stride) {
        begin = own.begin;
        const bool whole = own.count == piece_keys && begin >= 0 && begin + piece_keys <= low;
        if (__all_sync(all, whole)) info.kind = block_full;
        // Neighbours go into one box. Where nothing is masked they may also come in turn.
        const int32_t first = __shfl_sync(all, begin, 0), second = __shfl_sync(all, begin, 2);
        const int32_t third = __shfl_sync(all, begin, 4), fourth = __shfl_sync(all, begin, 6);
        const bool free = info.kind == block_full;
        const bool up = second == first + piece_keys && fourth == third + piece_keys;
        const bool down = free && second == first - piece_keys && fourth == third - piece_keys;
        boxes = Boxes::single;
        if (up || down) {
          const int32_t early = up ? first : second, late = up ? third : fourth;
          if (late == early + 2 * piece_keys || (free && early == late + 2 * piece_keys)) {
            boxes = Boxes::whole;
            begin = min(early, late);
          } else {
            boxes = Boxes::pairs;
            begin = lane < 2 ? early : late;
          }
        }
      } else if (info.stride == column_stride) {
        begin = static_cast<int32_t>(cursor.segment.begin + cursor.at);
      }
      const bool column = info.stride == column_stride;
      const auto copy = [&](__nv_bfloat16* tile, uint64_t* barrier, const CUtensorMap* contiguous,
                            const CUtensorMap* small, const CUtensorMap* pairs,
                            const CUtensorMap* columns) {
        if (lane == 0) {
          barrier_arrive_expect(barrier, tile_bytes);
        } else {
          barrier_arrive(barrier);
        }
        __syncwarp();
        if (boxes == Boxes::single) {
          if (lane < 2 * pieces) {
            copy_box(tile + half * half_tile + piece * piece_keys * 64, small, barrier, 0, begin,
                     half, kv_head);
          }
        } else if (boxes == Boxes::pairs) {
          if (lane < pieces) {
            copy_box(tile + half * half_tile + piece * 2 * piece_keys * 64, pairs, barrier, 0,
                     begin, half, kv_head);
          }
        } else if (lane == 0) {
          copy_box(tile, column ? columns : contiguous, barrier, 0, begin, 0, column ? 0 : kv_head);
        }
      };
      int32_t compared[block_keys / 32];
      if (info.kind == block_listed) {
#pragma unroll
        for (int i = 0; i < block_keys / 32; ++i) {
          compared[i] = cursor.compared(a.plan, info, i * 32 + lane);
        }
      }
      barrier_wait<V::watch>(&shared.empty_key[stage.index], stage.phase ^ 1);
      if (lane == 0) shared.blocks[stage.index] = info;
      if (info.kind == block_listed) {
#pragma unroll
        for (int i = 0; i < block_keys / 32; ++i) {
          shared.listed[stage.index][i * 32 + lane] = compared[i];
        }
      }
      copy(shared.keys[stage.index], &shared.full_key[stage.index], &arguments.all.keys,
           &arguments.key_pieces, &arguments.key_pairs, &arguments.key_columns);
      // The next pieces come while the values wait for their buffer.
      if (block + 1 < blocks) {
        cursor.advance();
        own = find_piece();
      }
      barrier_wait<V::watch>(&shared.empty_value[stage.index], stage.phase ^ 1);
      copy(shared.values[stage.index], &shared.full_value[stage.index], &arguments.all.values,
           &arguments.value_pieces, &arguments.value_pairs, &arguments.value_columns);
      stage.next();
    }
  }
}

// Copies any keys and values: contiguous ones as above, others row by row. Runs on three warps;
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
  const auto copy_rows = [&](const int32_t* rows, __nv_bfloat16* tile, const void* data,
                             int64_t offset, int64_t stride, int32_t valid, uint64_t* barrier) {
    const uint32_t base = shared_address(tile);
    const auto* from = static_cast<const __nv_bfloat16*>(data) + offset + piece * 8;
#pragma unroll 4
    for (int row = thread >> 4; row < block_keys; row += count / 16) {
      copy_16(base + swizzled(row, piece), from + rows[row] * stride, row < valid ? 16 : 0);
    }
    arrive_with_copies(barrier);
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
    // Rows of the next block are looked up while the current one is copied.
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
      barrier_wait<V::watch>(&shared.empty_key[stage.index], stage.phase ^ 1);
      if (thread == 0) shared.blocks[stage.index] = now;
      if (now.kind == block_listed) {
        for (int i = thread; i < block_keys; i += count) {
          shared.listed[stage.index][i] =
              i < now.full ? -1 : (i < now.valid ? rows[turn][i] : 0x7fffffff);
        }
      }
      if (contiguous) {
        copy_tile(shared.keys[stage.index], &arguments.keys, &shared.full_key[stage.index],
                  now.begin, kv_head);
      } else {
        copy_rows(rows[turn], shared.keys[stage.index], a.keys, kv_head * a.key_head_stride,
                  a.key_stride, now.valid, &shared.full_key[stage.index]);
      }
      barrier_wait<V::watch>(&shared.empty_value[stage.index], stage.phase ^ 1);
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
  }
  copy_commit();
  copy_wait<0>();
}

}  // namespace kinora::hopper
