// Products of up to eight rows with packed weights on Hopper, where reading the weights is all the
// work. Every warp of a block takes a slice of the columns, for which it brings the rows of a
// itself, and streams that slice of all strips of the block through a ring of its own in shared
// memory, two strips at a time. Nobody waits for anybody until a strip is summed up: one more warp
// adds what the others have of it and writes it out while they go on. Codes of 4 bits become bf16
// by nothing more than a constant exponent, so they carry an offset; the sum of the rows, which
// takes it off again, is one more product. Scales are applied to the sums of a unit. Blocks of a
// cluster share the columns where there are too few strips for all of them or too many columns.
#pragma once

#include "ops/packed_slices_rows_cuda.cuh"

namespace kinora::cuda::slices {

template <PackedKind kind>
__global__ void __launch_bounds__((most_warps + 1) * 32, 2)
    slices_kernel(const __grid_constant__ Source<kind> weight,
                  const __grid_constant__ Shape shape) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(256) char memory[];
  __shared__ uint64_t full, empty, inbox_full;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0);  // the compiler sees it is one
  const int warps = static_cast<int>(blockDim.x) / 32 - 1;
  const int split = shape.split;
  const int rank = split == 1 ? 0 : static_cast<int>(blockIdx.x) % split;
  const int cluster = static_cast<int>(blockIdx.x) / split;
  const int clusters = static_cast<int>(gridDim.x) / split;
  const int first = part_of(weight.strips, cluster, clusters);
  const int count = part_of(weight.strips, cluster + 1, clusters) - first;
  const uint32_t base = hopper::shared_address(memory);
  const bool normed = shape.unnormed != nullptr;
  const uint32_t squares_from = static_cast<uint32_t>(shape.most_owned * split) * sum_bytes;
  let_next_start();
  if (thread == 0) {
    hopper::barrier_init(&full, static_cast<uint32_t>(warps));
    hopper::barrier_init(&empty, 1);
    hopper::barrier_init(&inbox_full, 1);
    hopper::barrier_init_visible();
    if (split > 1) {
      const int messages = (count - rank + split - 1) / split * 32 + (normed ? 4 : 0);
      hopper::barrier_arrive_expect(&inbox_full, static_cast<uint32_t>(messages * split) * 16);
    }
  }
  const auto meet = [&] {
    __syncthreads();
    if (split > 1) {
      asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
      asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    }
  };

  if (warp < warps) {
    const int begin = part_of(weight.pieces, rank, split);
    const int range = part_of(weight.pieces, rank + 1, split) - begin;
    const int from = part_of(range, warp, warps);
    const int own = part_of(range, warp + 1, warps) - from;
    const uint32_t slot_bytes = together * (unit_bytes + shape.affine_bytes);
    const uint32_t ring = base + shape.rings + static_cast<uint32_t>(warp) * shape.ring_bytes;
    const uint32_t ring_end = ring + shape.ring_bytes;

    // What is asked for next, as offsets in bytes: a unit of two strips.
    const auto strip_codes = static_cast<uint32_t>(weight.pieces) * unit_bytes;
    const auto strip_scales = static_cast<uint32_t>(weight.groups) * scale_bytes;
    const int first_group = (begin + from) / weight.group_pieces;
    const int first_in_group = (begin + from) - first_group * weight.group_pieces;
    uint32_t codes = static_cast<uint32_t>(first) * strip_codes +
                     static_cast<uint32_t>(begin + from) * unit_bytes +
                     static_cast<uint32_t>(lane) * 16;
    // Eight lanes copy what belongs to a strip's scales: four of them scales, two zero points.
    const int affine_strip = lane / 8, affine_part = lane % 8;
    const bool copies_scale = affine_part < 4;
    const auto* affine_from =
        reinterpret_cast<const char*>(copies_scale ? static_cast<const void*>(weight.scales)
                                                   : static_cast<const void*>(weight.zeros));
    const bool copies =
        lane < 8 * together && (copies_scale || (affine_part < 6 && weight.zeros != nullptr));
    const uint32_t affine_step = copies_scale ? scale_bytes : zero_bytes;
    uint32_t affine = (static_cast<uint32_t>(first + affine_strip) * strip_scales +
                       static_cast<uint32_t>(first_group) * scale_bytes) /
                          (copies_scale ? 1 : scale_bytes / zero_bytes) +
                      static_cast<uint32_t>(affine_part % 4) * 16;
    const uint32_t affine_pass =
        together * strip_scales / (copies_scale ? 1 : scale_bytes / zero_bytes);
    uint32_t affine_begin = affine;
    const uint32_t affine_to = together * unit_bytes +
                               static_cast<uint32_t>(affine_strip) * shape.affine_bytes +
                               static_cast<uint32_t>(affine_part) * 16;
    const uint64_t policy = passing_policy();
    int strips_left = count, units_left = own, in_group = first_in_group;
    uint32_t ask_slot = ring;
    const auto ask = [&] {
      if (strips_left > 0) {
        const char* at = reinterpret_cast<const char*>(weight.codes) + codes;
        const uint32_t to = ask_slot + static_cast<uint32_t>(lane) * 16;
        copy_once(to, at, policy);
        copy_once(to + 512, at + 512, policy);
        if (strips_left > 1) {
          copy_once(to + unit_bytes, at + strip_codes, policy);
          copy_once(to + unit_bytes + 512, at + strip_codes + 512, policy);
        }
        if (copies && affine_strip < strips_left) {
          copy_own(ask_slot + affine_to, affine_from + affine);
        }
        codes += unit_bytes;
        if (++in_group == weight.group_pieces) {
          in_group = 0;
          affine += affine_step;
        }
        if (--units_left == 0) {
          units_left = own;
          in_group = first_in_group;
          affine = affine_begin += affine_pass;
          codes += together * strip_codes - static_cast<uint32_t>(own) * unit_bytes;
          strips_left -= together;
        }
      }
      ask_slot += slot_bytes;
      if (ask_slot == ring_end) ask_slot = ring;
      asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll 1
    for (int i = 0; i < depth; ++i) ask();
    meet();
    wait_for_previous();

    constexpr int unit_chunks = Source<kind>::row_bytes / 16;
    constexpr bool in_bf16 = Source<kind>::in_bf16;
    // Of every unit and row: what its products are too small by.
    uint32_t factors = base + shape.factors + static_cast<uint32_t>(from * most_rows * 4);
    const Slice slice{(begin + from) * Source<kind>::columns,
                      own * unit_chunks,
                      from * unit_chunks,
                      base,
                      factors,
                      base + shape.squares + static_cast<uint32_t>(from * most_rows * 4)};
    if (normed) {
      bring_rows<UnnormedColumns, in_bf16, unit_chunks>(shape, slice, lane);
    } else if constexpr (in_bf16) {
      copy_rows(shape, slice, lane);
    } else {
      bring_rows<PlainColumns, in_bf16, unit_chunks>(shape, slice, lane);
    }
    // Where a lane finds its part of the rows in the first 32 columns. Rows that are not there are
    // read as the last: nothing is written of them.
    const int own_row = min(lane % 8, shape.m - 1);
    uint32_t row_at =
        base + static_cast<uint32_t>(own_row) * shape.row_stride +
        static_cast<uint32_t>(from * Source<kind>::row_bytes + ((lane / 8 ^ own_row) << 4));
    factors += static_cast<uint32_t>(lane % 4 * 8);
    const bool own_zeros = kind != PackedKind::fp8 && weight.zeros != nullptr;
    __syncwarp();

    uint32_t slot = ring;
    uint32_t phase = 1;  // a barrier that nobody has used is through with the phase before
    const uint32_t one_partial = static_cast<uint32_t>(warps) * sum_bytes;
#pragma unroll 1
    for (int strip = 0; strip < count; strip += together) {
      const bool both = strip + 1 < count;
      float sum[together][4] = {};
#pragma unroll 1
      for (int unit = 0; unit < own; ++unit) {
        asm volatile("cp.async.wait_group %0;" ::"n"(depth - 1) : "memory");
        __syncwarp();  // scales are copied by other lanes
        const uint32_t lane_slot = slot + static_cast<uint32_t>(lane) * 16;
        const uint32_t aside = slot + together * unit_bytes;
        const auto steps = [&]<int strips>() {
          float part[strips][4] = {};
          [[maybe_unused]] float rows[4] = {};  // their sums
          uint32_t zeros[strips];
#pragma unroll
          for (int s = 0; s < strips; ++s) {
            zeros[s] = weight.zero;
            if (own_zeros) {
              zeros[s] = load_word(aside + static_cast<uint32_t>(s) * shape.affine_bytes +
                                   scale_bytes + static_cast<uint32_t>(lane / 4 * 4));
            }
          }
#pragma unroll
          for (int v = 0; v < 2; ++v) {
            uint32_t words[strips][4];
#pragma unroll
            for (int s = 0; s < strips; ++s) {
              load_vector(words[s], lane_slot + static_cast<uint32_t>(s) * unit_bytes +
                                        static_cast<uint32_t>(v) * (unit_bytes / 2));
            }
            constexpr int step_words = kind == PackedKind::int4 ? 1 : 2;
#pragma unroll
            for (int half = 0; half < 2 / step_words; ++half) {  // of 32 columns
              const int block = v * (2 / step_words) + half;
              uint32_t right[4];
              load_matrices(right, (row_at ^ static_cast<uint32_t>(block % 2 * 64)) +
                                       static_cast<uint32_t>(block / 2 * 128));
#pragma unroll
              for (int step = 0; step < 2; ++step) {
#pragma unroll
                for (int s = 0; s < strips; ++s) {
                  uint32_t left[4];
                  numbers_of<kind>(left, words[s] + (half * 2 + step) * step_words, zeros[s]);
                  multiply<in_bf16>(part[s], left, right[2 * step], right[2 * step + 1]);
                }
                if constexpr (kind == PackedKind::int4) {
                  const uint32_t ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
                  multiply<in_bf16>(rows, ones, right[2 * step], right[2 * step + 1]);
                }
              }
            }
          }
          [[maybe_unused]] float2 factor{};
          if constexpr (!in_bf16) {
            factor = load_two(factors + static_cast<uint32_t>(unit * most_rows * 4));
          }
#pragma unroll
          for (int s = 0; s < strips; ++s) {
            const float2 scale = load_two(aside + static_cast<uint32_t>(s) * shape.affine_bytes +
                                          static_cast<uint32_t>(lane / 4 * 8));
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              float product = part[s][j];
              if constexpr (kind == PackedKind::int4) {
                const uint32_t zero = j < 2 ? zeros[s] << 16 : zeros[s] & 0xffff0000u;
                product = fmaf(-__uint_as_float(zero), rows[j % 2], product);
              }
              if constexpr (!in_bf16) product *= j % 2 == 0 ? factor.x : factor.y;
              sum[s][j] = fmaf(j < 2 ? scale.x : scale.y, product, sum[s][j]);
            }
          }
        };
        both ? steps.template operator()<2>() : steps.template operator()<1>();
        __syncwarp();  // all have read the scales
        ask();
        slot += slot_bytes;
        if (slot == ring_end) slot = ring;
        row_at += Source<kind>::row_bytes;
      }
      row_at -= static_cast<uint32_t>(own) * Source<kind>::row_bytes;
      hopper::barrier_wait<false>(&empty, phase);
      phase ^= 1;
      const uint32_t to =
          base + shape.partial + static_cast<uint32_t>(warp * sum_bytes + lane * 16);
#pragma unroll
      for (int s = 0; s < together; ++s) {
        store_four(to + static_cast<uint32_t>(s) * one_partial, sum[s]);
      }
      __syncwarp();
      if (lane == 0) hopper::barrier_arrive(&full);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
  } else {
    meet();
    wait_for_previous();   // who reads `out` may still run
    float factor[2] = {};  // of the lane's rows
    uint32_t phase = 0;
#pragma unroll 1
    for (int strip = 0; strip < count; strip += together) {
      hopper::barrier_wait<false>(&full, phase);
      phase ^= 1;
      if (normed && strip == 0) {
        const int range =
            part_of(weight.pieces, rank + 1, split) - part_of(weight.pieces, rank, split);
        for (int unit = lane / 4; unit < range; unit += 8) {
          const float2 two = load_two(base + shape.squares +
                                      static_cast<uint32_t>(unit * most_rows * 4 + lane % 4 * 8));
          factor[0] += two.x;
          factor[1] += two.y;
        }
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) {
          factor[0] += __shfl_xor_sync(0xffffffffu, factor[0], distance);
          factor[1] += __shfl_xor_sync(0xffffffffu, factor[1], distance);
        }
        if (split == 1) {
          to_factor(shape, factor);
        } else if (lane < 4) {
          const float two[4] = {factor[0], factor[1], 0, 0};
          for (int r = 0; r < split; ++r) {
            send_four(
                base + shape.inbox + squares_from + static_cast<uint32_t>(rank * 64 + lane * 16),
                hopper::shared_address(&inbox_full), r, two);
          }
        }
      }
#pragma unroll 1
      for (int s = 0; s < together && strip + s < count; ++s) {
        float total[4] = {};
        const uint32_t at =
            base + shape.partial + static_cast<uint32_t>(s * warps * sum_bytes + lane * 16);
#pragma unroll 4
        for (int w = 0; w < warps; ++w) {
          add_four(total, at + static_cast<uint32_t>(w * sum_bytes));
        }
        if (split == 1) {
          if (normed) scale_rows(total, factor);
          write_sums(shape, weight.paired, first + strip + s, lane, total);
        } else {
          const int owner = (strip + s) % split, index = (strip + s) / split;
          send_four(base + shape.inbox +
                        static_cast<uint32_t>((index * split + rank) * sum_bytes + lane * 16),
                    hopper::shared_address(&inbox_full), owner, total);
        }
      }
      __syncwarp();
      if (lane == 0) hopper::barrier_arrive(&empty);
    }
  }
  if (split == 1) return;
  const int owned = (count - rank + split - 1) / split;
  if (owned <= 0 && !normed) return;
  hopper::barrier_wait<false>(&inbox_full, 0);
  float factor[2] = {};
  if (normed) {
    for (int r = 0; r < split; ++r) {
      const float2 two = load_two(base + shape.inbox + squares_from +
                                  static_cast<uint32_t>(r * 64 + lane % 4 * 16));
      factor[0] += two.x;
      factor[1] += two.y;
    }
    to_factor(shape, factor);
  }
#pragma unroll 1
  for (int i = warp; i < owned; i += warps + 1) {
    float total[4] = {};
    const uint32_t at =
        base + shape.inbox + static_cast<uint32_t>(i * split * sum_bytes + lane * 16);
#pragma unroll 1
    for (int r = 0; r < split; ++r) add_four(total, at + static_cast<uint32_t>(r * sum_bytes));
    if (normed) scale_rows(total, factor);
    write_sums(shape, weight.paired, first + i * split + rank, lane, total);
  }
#endif
}

}  // namespace kinora::cuda::slices
