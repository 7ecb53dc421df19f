// Products of few rows with packed weights, where reading the weights is all the work. A block
// takes some strips of sixteen rows of the weights, and its warps equal shares of their pieces of
// 64 or 128 columns, one after the other, so that none waits for another. Every lane brings its own
// bytes of a piece through a ring in shared memory, turns them into f16 in registers, in the order
// in which the tensor cores take them, and multiplies them with eight or sixteen rows. Codes become
// numbers by nothing more than a constant exponent, so they carry an offset; what it adds is known
// from the sum of a row in the piece. Scales are applied to the sums of a piece. Where a block
// cannot hold its rows, blocks of one cluster take parts of the columns and add up at the end.
#pragma once

#include <cooperative_groups.h>

#include "base/cuda_support.h"
#include "ops/packed_codes_cuda.cuh"
#include "ops/packed_few_rows_cuda.cuh"

namespace kinora::cuda::few {

constexpr uint32_t ring = 5;  // pieces of a warp on their way or in use

// The weights as the kernel takes them: `together` pieces of 64 columns as one.
template <PackedKind kind_, int together_>
struct Source : StripCodes {
  static constexpr PackedKind kind = kind_;
  static constexpr int together = together_;
  static constexpr int columns = together * strip_piece;
  static constexpr uint32_t vectors = together * lane_vectors<kind>;  // of a lane, in a piece
  static constexpr bool offset = kind != PackedKind::fp8;

  explicit Source(const StripCodes& from) : StripCodes(from) {
    pieces /= together;
    group_pieces /= together;
  }
};

// Two scales and two zero points of the eight pairs of rows of a strip, side by side in shared
// memory: four lanes copy the scales, two the zero points.
constexpr uint32_t scale_bytes = 8 * sizeof(float2);
constexpr uint32_t zero_bytes = 8 * sizeof(uint32_t);
constexpr uint32_t affine_bytes = scale_bytes + zero_bytes;

// Where a lane's part of a piece is.
template <class Weights>
struct Cursor {
  const uint4* codes;
  const char* affine;  // what the lane copies of scales and zero points; null: nothing
  int in_group;        // pieces of the group of columns that come before

  static __device__ __forceinline__ int affine_step(int lane) {
    return static_cast<int>(lane < 4 ? scale_bytes : zero_bytes);
  }
  __device__ __forceinline__ void start(const Weights& weight, int strip, int at, int lane) {
    const int group = at / weight.group_pieces;
    codes = weight.codes + (int64_t{strip} * weight.pieces + at) * (Weights::vectors * 32) + lane;
    in_group = at - group * weight.group_pieces;
    const int64_t set = int64_t{strip} * weight.groups + group;
    affine = nullptr;
    if (lane < 4) affine = reinterpret_cast<const char*>(weight.scales + set * 8) + lane * 16;
    if (lane / 2 == 2 && weight.zeros != nullptr) {
      affine = reinterpret_cast<const char*>(weight.zeros + set * 8) + (lane - 4) * 16;
    }
  }
  __device__ __forceinline__ void step(const Weights& weight, int lane) {
    codes += Weights::vectors * 32;
    if (++in_group == weight.group_pieces) {
      in_group = 0;
      if (affine != nullptr) affine += affine_step(lane);
    }
  }
};

__device__ __forceinline__ void multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void load_four(uint32_t* r, uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

__device__ __forceinline__ uint32_t shared_address(const void* memory) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(memory));
}

__device__ __forceinline__ void copy_own(uint32_t target, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}

__device__ __forceinline__ void load_vector(uint32_t* r, uint32_t address) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ float2 load_two(uint32_t address) {
  float2 two;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(two.x), "=f"(two.y)
               : "r"(address)
               : "memory");
  return two;
}

__device__ __forceinline__ uint32_t load_word(uint32_t address) {
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

__device__ __forceinline__ float4 load_floats(uint32_t address) {
  float4 four;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
               : "r"(address));
  return four;
}

__device__ __forceinline__ void write_out(const Rows& shape, int row, int column, float value) {
  const int64_t at = row * shape.out_stride + column;
  if (shape.out_type == DType::bf16) {
    auto* target = static_cast<__nv_bfloat16*>(shape.out) + at;
    *target = from_float<__nv_bfloat16>(value + (shape.accumulate ? to_float(*target) : 0.0f));
  } else {
    float* target = static_cast<float*>(shape.out) + at;
    *target = value + (shape.accumulate ? *target : 0.0f);
  }
}

__device__ __forceinline__ int cluster_rank(int split) {
  return split == 1 ? 0 : static_cast<int>(blockIdx.x) % split;
}

__device__ __forceinline__ void meet_cluster(int split) {
#if __CUDA_ARCH__ >= 900
  if (split > 1) return cooperative_groups::this_cluster().sync();
#endif
  __syncthreads();
}

// The same where nobody reads what others have written: only the time counts.
__device__ __forceinline__ void leave_cluster(int split) {
#if __CUDA_ARCH__ >= 900
  if (split == 1) return;
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// Where another block of the cluster has what this one has at `own`.
__device__ __forceinline__ const float4* of_block(float4* own, int rank, int split) {
#if __CUDA_ARCH__ >= 900
  if (split > 1) {
    return cooperative_groups::this_cluster().map_shared_rank(own, static_cast<unsigned int>(rank));
  }
#endif
  return own;
}

template <class Weights, int tiles>
__global__ void __launch_bounds__(threads, tiles == 1 ? 2 : 1)
    few_rows_kernel(Weights weight, Rows shape) {
  constexpr uint32_t vectors = Weights::vectors;
  extern __shared__ __align__(128) char memory[];
  __shared__ float norm_factors[pass_rows];
  __shared__ float scratch[32];
  __shared__ int later_strip[warps];
  let_next_start();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int rank = cluster_rank(shape.split);
  const int cluster = static_cast<int>(blockIdx.x) / shape.split;
  const int clusters = static_cast<int>(gridDim.x) / shape.split;
  const auto share = [](int all, int part, int parts) {
    return static_cast<int>(int64_t{all} * part / parts);
  };
  const int first = share(weight.strips, cluster, clusters);
  const int count = share(weight.strips, cluster + 1, clusters) - first;
  const int begin = share(weight.pieces, rank, shape.split);
  const int range = share(weight.pieces, rank + 1, shape.split) - begin;
  // The block's pieces, strip by strip, and the warp's share of them.
  const int from = share(count * range, warp, warps);
  const int until = share(count * range, warp + 1, warps);

  char* rows = memory;
  auto* factors = reinterpret_cast<float2*>(rows + shape.division.rows);
  char* after = rows + shape.division.rows + shape.division.factors;
  const uint32_t slots = shared_address(after) + static_cast<uint32_t>(thread * 16);
  after += shape.division.slots;
  const uint32_t affine = shared_address(after) + static_cast<uint32_t>(warp) * affine_bytes;
  after += shape.division.affine;
  auto* later = reinterpret_cast<float4*>(after);
  auto* sums = reinterpret_cast<float4*>(after + shape.division.later);

  // Where the warp begins: piece `at` of the block's columns, in its strip `strip`.
  int strip = from / range, at = from % range;
  int wanted = until - from, next_at = wanted > 0 ? at : 0, next_strip = wanted > 0 ? strip : 0;
  Cursor<Weights> next;
  next.start(weight, first + next_strip, begin + next_at, lane);
  const auto ask = [&](uint32_t slot) {
#pragma unroll
    for (uint32_t v = 0; v < vectors; ++v) {
      copy_own(slots + (slot * vectors + v) * (threads * 16), next.codes + v * 32);
    }
    if (next.affine != nullptr) {
      copy_own(affine + slot * (warps * affine_bytes) + static_cast<uint32_t>(lane) * 16,
               next.affine);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    // After the last piece it is asked for again, which costs less than to ask whether.
    if (--wanted <= 0) return;
    if (++next_at == range) {
      next_at = 0;
      next.start(weight, first + ++next_strip, begin, lane);
    } else {
      next.step(weight, lane);
    }
  };
#pragma unroll
  for (uint32_t i = 0; i < ring - 1; ++i) ask(i);
  wait_for_previous();
  if (shape.unnormed != nullptr) {
    find_norm_factors(shape, norm_factors, scratch);
    __syncthreads();
    bring_rows<Weights, tiles, UnnormedColumns, 2>(shape, norm_factors, rows, factors,
                                                   begin * Weights::columns, range);
  } else {
    bring_rows<Weights, tiles, PlainColumns, 4>(shape, norm_factors, rows, factors,
                                                begin * Weights::columns, range);
  }

  // A strip that several warps share: the one that has its begin writes to `sums`, the others to
  // their own part of `later`, even if they have nothing of it.
  bool has_begin = at == 0;
  if (lane == 0) later_strip[warp] = has_begin ? -1 : strip;
  float sum[tiles][4] = {};
  const auto finish_strip = [&] {
    float4* to = (has_begin ? sums + strip * tiles * 32 : later + warp * tiles * 32) + lane;
#pragma unroll
    for (int t = 0; t < tiles; ++t) {
      to[t * 32] = make_float4(sum[t][0], sum[t][1], sum[t][2], sum[t][3]);
      sum[t][0] = sum[t][1] = sum[t][2] = sum[t][3] = 0;
    }
    has_begin = true;
    at = 0;
    ++strip;
  };
  if (from == until && !has_begin) finish_strip();
  __syncthreads();

  // Where a lane finds its part of the rows in the first 64 columns; to the others it is 128 bytes
  // each. Rows that are not there are read as the first: nothing is written of them.
  uint32_t row_at[tiles][2];
#pragma unroll
  for (int t = 0; t < tiles; ++t) {
    const int wanted_row = t * tile_rows + lane % 8;
    const int row = wanted_row < shape.m ? wanted_row : 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      row_at[t][half] =
          shared_address(rows) + static_cast<uint32_t>(row * shape.division.columns * 2 +
                                                       (((half * 4 + lane / 8) ^ (row & 7)) << 4));
    }
  }
  const uint32_t factors_at = shared_address(factors) + static_cast<uint32_t>(lane % 4 * 16);
#pragma unroll 1
  for (int i = from; i < until; i += static_cast<int>(ring)) {
#pragma unroll
    for (uint32_t slot = 0; slot < ring; ++slot) {
      if (i + static_cast<int>(slot) >= until) break;
      asm volatile("cp.async.wait_group %0;" ::"n"(ring - 2) : "memory");
      __syncwarp();  // scales are copied by other lanes
      uint32_t words[4 * vectors];
#pragma unroll
      for (uint32_t v = 0; v < vectors; ++v) {
        load_vector(words + v * 4, slots + (slot * vectors + v) * (threads * 16));
      }
      const uint32_t aside = affine + slot * (warps * affine_bytes);
      const float2 scales = load_two(aside + static_cast<uint32_t>(lane / 4 * 8));
      uint32_t zeros = weight.zero;
      if (Weights::offset && weight.zeros != nullptr) {
        zeros = load_word(aside + scale_bytes + static_cast<uint32_t>(lane / 4 * 4));
      }
      const Affine by = affine_of<Weights::kind>(scales, zeros);
      ask((slot + ring - 1) % ring);  // the piece before this one, which has been read
      // Products of neighbouring steps need not wait for each other.
      constexpr int chains = tiles == 1 && Weights::together == 2 ? 2 : 1;
      float part[tiles][chains][4] = {};
#pragma unroll
      for (int columns = 0; columns < Weights::columns; columns += 64) {
        uint32_t right[tiles][8];
#pragma unroll
        for (int t = 0; t < tiles; ++t) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            load_four(
                right[t] + half * 4,
                row_at[t][half] + static_cast<uint32_t>((at * Weights::columns + columns) * 2));
          }
        }
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          uint32_t left[4];
          halves_of<Weights::kind>(left,
                                   words + (columns / 16 + step) * lane_vectors<Weights::kind>);
#pragma unroll
          for (int t = 0; t < tiles; ++t) {
            multiply(part[t][step % chains], left, right[t][2 * step], right[t][2 * step + 1]);
          }
        }
      }
#pragma unroll
      for (int t = 0; t < tiles; ++t) {
        // Sum and factor of the lane's two rows of a.
        const float4 of =
            load_floats(factors_at + static_cast<uint32_t>((at * tiles + t) * (tile_rows * 8)));
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int pair = j / 2;
          float product = part[t][0][j];
          if constexpr (chains == 2) product += part[t][chains - 1][j];
          if constexpr (Weights::offset) {
            product = fmaf(-by.offset[pair], j % 2 == 0 ? of.x : of.z, product);
          }
          sum[t][j] = fmaf(by.scale[pair] * (j % 2 == 0 ? of.y : of.w), product, sum[t][j]);
        }
      }
      if (++at == range) finish_strip();
    }
  }
  if (at != 0 && from != until) finish_strip();
  __syncthreads();
  // Warps that share a strip are neighbours: the first after that with the begin adds them up.
  const int shared_strip = later_strip[warp];
  if (shared_strip >= 0 && (warp == 0 || later_strip[warp - 1] != shared_strip)) {
#pragma unroll
    for (int t = 0; t < tiles; ++t) {
      float4& all = sums[(shared_strip * tiles + t) * 32 + lane];
      float4 total = all;
      for (int w = warp; w < warps && later_strip[w] == shared_strip; ++w) {
        const float4 more = later[(w * tiles + t) * 32 + lane];
        total.x += more.x;
        total.y += more.y;
        total.z += more.z;
        total.w += more.w;
      }
      all = total;
    }
  }
  meet_cluster(shape.split);
  const int outputs = weight.paired ? 8 : 16;
  const int own_strips = count > rank ? (count - rank + shape.split - 1) / shape.split : 0;
  for (int i = thread; i < own_strips * tiles * 32; i += threads) {
    const int own = rank + i / (tiles * 32) * shape.split, tile = i / 32 % tiles;
    float total[4] = {};
    for (int r = 0; r < shape.split; ++r) {
      const float4 some = of_block(sums, r, shape.split)[own * tiles * 32 + i % (tiles * 32)];
      total[0] += some.x;
      total[1] += some.y;
      total[2] += some.z;
      total[3] += some.w;
    }
    const int column = (first + own) * outputs + i % 32 / 4;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = tile * tile_rows + i % 4 * 2 + j;
      if (row >= shape.m) continue;
      const auto biased = [&](float value, int place) {
        return value + bias_of(shape.bias, shape.bias_type, place);
      };
      if (weight.paired) {
        if (column >= shape.n) continue;
        const float gate = biased(total[j], column), up = biased(total[j + 2], shape.n + column);
        write_out(shape, row, column, gate / (1.0f + __expf(-gate)) * up);
      } else {
        if (column < shape.n) write_out(shape, row, column, biased(total[j], column));
        if (column + 8 < shape.n) {
          write_out(shape, row, column + 8, biased(total[j + 2], column + 8));
        }
      }
    }
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  leave_cluster(shape.split);  // not while others read its sums
}

}  // namespace kinora::cuda::few
