// The producer warpgroup of the Hopper kernel: takes jobs, and brings queries, keys and values into
// shared memory.
#pragma once

#include "attention/cuda/hopper_layout.cuh"

namespace kinora::hopper {

// Takes jobs, finds their rows and loads their queries, one job ahead of the consumers.
template <typename V>
__device__ void load_queries(const Problem& a, Shared<V>& shared) {
  constexpr int first = V::copy_warps * 32;
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
    for (int i = thread; i < job_rows * V::row_pieces; i += count) {
      const int row = i / V::row_pieces, piece = i % V::row_pieces;
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

// Copies a box of keys, or of values, for every block; one thread. place(segment, info) finds out
// what copy(place, of keys, tile, barrier, kv head) wants to know about a block.
template <typename V, class Place, class Copy>
__device__ inline void load_boxes(const Problem& a, Shared<V>& shared, bool keys,
                                  const Place& place, const Copy& copy) {
  const Target<V> target(shared, keys);
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
      const auto at = place(cursor.segment, info);
      barrier_wait<V::watch>(&target.empty[stage.index], stage.phase ^ 1);
      if (keys) shared.blocks[stage.index] = info;
      barrier_arrive_expect(&target.full[stage.index], V::tile_bytes);
      copy(at, keys, target.tiles[stage.index], &target.full[stage.index], kv_head);
      stage.next();
      cursor.advance();
    }
  }
}

// Contiguous keys or values.
template <typename V>
__device__ void load_contiguous(const Arguments& arguments, Shared<V>& shared, bool of_keys) {
  load_boxes<V>(
      arguments.problem, shared, of_keys,
      [](const CudaSegment&, const BlockInfo& info) { return info.begin; },
      [&](int32_t begin, bool keys, void* tile, uint64_t* barrier, int kv_head) {
        copy_box(tile, keys ? &arguments.keys : &arguments.values, barrier, 0, begin, 0, kv_head);
      });
}

// Where a block of affine keys begins.
struct AffinePlace {
  int32_t map;  // −1: contiguous, from row `at.step` on
  StrideLayout::Place at;
};

__device__ inline AffinePlace find_place(const StridedArguments& arguments, int32_t map,
                                         const BlockInfo& info) {
  if (info.stride <= 1) return {-1, {0, 0, info.begin}};
  return {map, StrideLayout(arguments.row_count, info.stride).place(info.begin)};
}

__device__ inline void copy_affine(const StridedArguments& arguments, const AffinePlace& place,
                                   bool keys, void* tile, uint64_t* barrier, int kv_head) {
  const StrideLayout::Place& at = place.at;
  if (place.map < 0) {
    copy_box(tile, keys ? &arguments.all.keys : &arguments.all.values, barrier, 0, at.step, 0,
             kv_head);
  } else {
    const StrideMap& map = keys ? arguments.keys[place.map] : arguments.values[place.map];
    copy_box(tile, at.of_longer != 0 ? &map.longer : &map.shorter, barrier, 0, at.step, at.phase, 0,
             kv_head);
  }
}

// Contiguous and strided ones.
template <typename V>
__device__ void load_strided(const StridedArguments& arguments, Shared<V>& shared, bool of_keys) {
  load_boxes<V>(
      arguments.all.problem, shared, of_keys,
      [&](const CudaSegment& segment, const BlockInfo& info) {
        return find_place(arguments, segment.shift, info);
      },
      [&](const AffinePlace& at, bool keys, void* tile, uint64_t* barrier, int kv_head) {
        copy_affine(arguments, at, keys, tile, barrier, kv_head);
      });
}

__device__ inline void fence_maps(const HeadStrideMaps& maps) {
  fence_map(&maps.keys.longer);
  fence_map(&maps.keys.shorter);
  fence_map(&maps.values.longer);
  fence_map(&maps.values.shorter);
}

// How the four pieces of a block are copied: the fewer boxes, the less the copy engine has to do.
enum class Boxes { whole, pairs, single };

// Copies pieces of up to 32 adjacent keys, four to a block, columns from their copies, and affine
// keys, or the values of these; one warp. Boxes outside memory are filled with zeros.
template <typename V>
__device__ void load_pieces(const PieceArguments& arguments, Shared<V>& shared, bool keys) {
  constexpr uint32_t all = 0xffffffffu;
  constexpr int pieces = block_keys / piece_keys;
  const Problem& a = arguments.all.problem;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int halves = V::halves;
  // With two halves, lanes 2 p and 2 p + 1 have those of piece p.
  const int piece = lane / halves % pieces;
  const int half = lane % halves;
  const Target<V> target(shared, keys);
  Ring<V::stages> stage;
  uint32_t fenced = 0;  // heads whose maps this thread has fenced, of the first 32
  for (Ring<2> slot;; slot.next()) {
    barrier_wait<V::watch>(&shared.full_query[slot.index], slot.phase);
    const CudaJob& job = shared.slots[slot.index].job;
    const int32_t blocks = job.blocks, low = job.low;
    if (blocks < 0) return;
    const int kv_head = job.head / a.group;
    Cursor<block_keys> cursor(a.plan, job);
    __syncwarp();  // all lanes have read the job
    if (lane == 0) barrier_arrive(&shared.empty_query[slot.index]);
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
        const auto begin_of = [&](int place) { return __shfl_sync(all, begin, place * halves); };
        const int32_t first = begin_of(0), second = begin_of(1);
        const int32_t third = begin_of(2), fourth = begin_of(3);
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
            begin = lane < halves ? early : late;
          }
        }
      } else if (info.stride == column_stride) {
        begin = static_cast<int32_t>(cursor.segment.begin + cursor.at);
      }
      const bool column = info.stride == column_stride;
      // Strided keys: the head whose maps they are in, and the phase, below zero (as ~phase) in
      // the map of shorter ones; `begin` is the step.
      int32_t head = 0, phase = 0;
      if constexpr (V::strided) {
        if (info.stride > 1) {
          head = cursor.segment.shift;
          const auto place = StrideLayout(arguments.row_count, info.stride).place(info.begin);
          begin = place.step;
          phase = place.of_longer != 0 ? place.phase : ~place.phase;
          if (lane == 0 && (head >= 32 || (fenced >> head & 1) == 0)) {
            fence_maps(arguments.strides[head]);
            if (head < 32) fenced |= 1u << head;
          }
        }
      }
      int32_t compared[block_keys / 32];
      const bool listed = keys && info.kind == block_listed;
      if (listed) {
#pragma unroll
        for (int i = 0; i < block_keys / 32; ++i) {
          compared[i] = cursor.compared(a.plan, info, i * 32 + lane);
        }
      }
      barrier_wait<V::watch>(&target.empty[stage.index], stage.phase ^ 1);
      if (listed) {
#pragma unroll
        for (int i = 0; i < block_keys / 32; ++i) {
          shared.listed[stage.index][i * 32 + lane] = compared[i];
        }
        __syncwarp();  // lane 0 speaks for all
      }
      __nv_bfloat16* tile = target.tiles[stage.index];
      uint64_t* barrier = &target.full[stage.index];
      if (lane == 0) {
        if (keys) shared.blocks[stage.index] = info;
        barrier_arrive_expect(barrier, V::tile_bytes);
      }
      __syncwarp();  // no copy ends before it is expected
      if (boxes == Boxes::single) {
        if (lane < halves * pieces) {
          copy_box(tile + half * half_tile + piece * piece_keys * 64,
                   keys ? &arguments.key_pieces : &arguments.value_pieces, barrier, 0, begin, half,
                   kv_head);
        }
      } else if (boxes == Boxes::pairs) {
        if (lane < halves * pieces / 2) {
          copy_box(tile + half * half_tile + piece * 2 * piece_keys * 64,
                   keys ? &arguments.key_pairs : &arguments.value_pairs, barrier, 0, begin, half,
                   kv_head);
        }
      } else if (V::strided && info.stride > 1) {
        if (lane == 0) {
          const HeadStrideMaps& maps = arguments.strides[head];
          const StrideMap& map = keys ? maps.keys : maps.values;
          copy_box(tile, phase >= 0 ? &map.longer : &map.shorter, barrier, 0, begin,
                   phase >= 0 ? phase : ~phase, 0, kv_head);
        }
      } else if (lane == 0) {
        const CUtensorMap* columns = keys ? &arguments.key_columns : &arguments.value_columns;
        const CUtensorMap* contiguous = keys ? &arguments.all.keys : &arguments.all.values;
        copy_box(tile, column ? columns : contiguous, barrier, 0, begin, 0, column ? 0 : kv_head);
      }
      // The next pieces come while this warp waits for a buffer.
      if (block + 1 < blocks) {
        cursor.advance();
        own = find_piece();
      }
      stage.next();
    }
  }
}

}  // namespace kinora::hopper
