// Products of few rows with packed weights, where reading the weights is all the work. A block
// takes some strips of sixteen rows of the weights, and its warps equal shares of their pieces of
// 64 or 128 columns, one after the other, so that none waits for another. Every lane brings its own
// bytes of a piece through a ring in shared memory, turns them into f16 in registers, in the order
// in which the tensor cores take them, and multiplies them with eight or sixteen rows. Codes become
// numbers by nothing more than a constant exponent, so they carry an offset; what it adds is known
// from the sum of a row in the piece. Scales are applied to the sums of a piece. Where a block
// cannot hold its rows, blocks of one cluster take parts of the columns and add up at the end.
//
// f16 holds the rows as exactly as bf16 does: the columns of a piece are multiplied by the power of
// two that brings the largest of them close to the largest number.
#pragma once

#include <cooperative_groups.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "base/cuda_support.h"
#include "ops/cuda_kernels.h"
#include "ops/matmul_parts_cuda.cuh"
#include "ops/packed_codes_cuda.cuh"

namespace kinora::cuda::few {

constexpr int warps = 12;
constexpr int threads = 32 * warps;
constexpr uint32_t ring = 5;   // pieces of a warp on their way or in use
constexpr int pass_rows = 16;  // rows of a in one pass over the weights, at most
constexpr int tile_rows = 8;   // rows of a in one product of the tensor cores
constexpr int most_split = 8;  // blocks of a cluster that every card with clusters takes
// Of the sums of a block's strips; with more of them there are more blocks than run at once.
constexpr size_t most_sum_bytes = 48 * 1024;
constexpr int64_t usual_row_bytes = 40 * 1024;
constexpr int usual_strips = 40;  // of a block

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

// How shared memory is divided; all sizes in bytes.
struct Division {
  int columns;     // of a block, whole pieces
  size_t rows;     // [m, columns] f16
  size_t factors;  // [pieces of a block, tiles × tile_rows] of two f32: the sum of the row in the
                   // piece as it is multiplied, and what its products are too small by
  size_t slots;    // [ring, vectors, threads] of codes
  size_t affine;   // [ring, warps] of scales and zero points
  size_t later;    // [warps, tiles, 32] of four sums
  size_t sums;     // [strips of a block, tiles, 32] of four sums

  size_t all() const { return rows + factors + slots + affine + later + sums; }
};

// All of a product but its weights.
struct Rows {
  int split;  // blocks that share the columns of a strip
  const __nv_bfloat16* a;
  int64_t a_stride;
  bool whole_vectors;  // rows of a can be read sixteen bytes at a time
  // Rows before their RMS norm, in the place of `a`; null: none.
  const float* unnormed;
  const __nv_bfloat16* norm;
  float epsilon;
  int m, n, k;  // n: columns of out
  const void* bias;
  DType bias_type;
  bool accumulate;
  void* out;
  DType out_type;
  int64_t out_stride;
  Division division;
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

__device__ __forceinline__ float unpack(const uint4& eight, int j) {
  const uint32_t pair = j < 2 ? eight.x : j < 4 ? eight.y : j < 6 ? eight.z : eight.w;
  return __uint_as_float(j % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
}

// Eight columns of a row as they are in memory.
struct PlainColumns {
  uint4 eight;

  __device__ __forceinline__ void load(const Rows& shape, int row, int column) {
    const __nv_bfloat16* from = shape.a + row * shape.a_stride + column;
    eight = make_uint4(0, 0, 0, 0);
    if (shape.whole_vectors) {
      if (column < shape.k) eight = __ldcg(reinterpret_cast<const uint4*>(from));
      return;
    }
    __nv_bfloat16 values[8];
    for (int j = 0; j < 8; ++j) {
      values[j] = column + j < shape.k ? from[j] : __float2bfloat16_rn(0.0f);
    }
    memcpy(&eight, values, sizeof(eight));
  }
  __device__ __forceinline__ float value(int j, float) const { return unpack(eight, j); }
};

// The same before their norm.
struct UnnormedColumns {
  float4 low, high;
  uint4 norm;

  __device__ __forceinline__ void load(const Rows& shape, int row, int column) {
    low = high = make_float4(0, 0, 0, 0);
    norm = make_uint4(0, 0, 0, 0);
    if (column >= shape.k) return;  // k is a multiple of eight here
    const auto* from =
        reinterpret_cast<const float4*>(shape.unnormed + row * shape.a_stride + column);
    low = __ldcg(from);
    high = __ldcg(from + 1);
    norm = __ldg(reinterpret_cast<const uint4*>(shape.norm + column));
  }
  __device__ __forceinline__ float value(int j, float factor) const {
    const float own[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    return __bfloat162float(__float2bfloat16_rn(own[j] * factor * unpack(norm, j)));
  }
};

// Puts eight columns of a row, vector `vector` of it, to the others in `target`; neighbouring lanes
// have those of a piece.
template <int tiles, int piece_vectors>
__device__ __forceinline__ void put_columns(const float (&x)[8], int row, int vector, char* target,
                                            float2* factors) {
  const unsigned int lanes = ((1u << piece_vectors) - 1) << (threadIdx.x & (32 - piece_vectors));
  float largest = 0, sum = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    largest = fmaxf(largest, fabsf(x[j]));
    sum += x[j];
  }
#pragma unroll
  for (int step = 1; step < piece_vectors; step *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(lanes, largest, step));
    sum += __shfl_xor_sync(lanes, sum, step);
  }
  // The largest comes to lie between 2^14 and 2^15.
  const int exponent =
      min(max(2 * 127 + 14 - static_cast<int>(__float_as_uint(largest) >> 23), 1), 253);
  const float larger = __uint_as_float(static_cast<uint32_t>(exponent) << 23);
  const auto pair = [&](int j) {
    const __half2 both = __floats2half2_rn(x[j] * larger, x[j + 1] * larger);
    uint32_t raw;
    memcpy(&raw, &both, sizeof(raw));
    return raw;
  };
  // Eight rows of one column meet different banks.
  *reinterpret_cast<uint4*>(target + ((vector ^ (row & 7)) << 4)) =
      make_uint4(pair(0), pair(2), pair(4), pair(6));
  if (vector % piece_vectors == 0) {
    factors[vector / piece_vectors * (tiles * tile_rows) + row] =
        make_float2(sum * larger, __uint_as_float(static_cast<uint32_t>(254 - exponent) << 23));
  }
}

// rows and factors ← the columns of `pieces` pieces from `first` on, zeros beyond the last column.
// `at_once` vectors of a thread are on their way together.
template <class Weights, int tiles, class Columns, int at_once>
__device__ __forceinline__ void bring_rows(const Rows& shape, const float* norm_factors, char* rows,
                                           float2* factors, int first, int pieces) {
  constexpr int piece_vectors = Weights::columns / 8;
  const int vectors = pieces * piece_vectors, all = shape.m * vectors;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < all; i += at_once * threads) {
    Columns columns[at_once];
#pragma unroll
    for (int n = 0; n < at_once; ++n) {
      const int own = i + n * threads, row = own / vectors;
      if (own < all) columns[n].load(shape, row, first + (own - row * vectors) * 8);
    }
#pragma unroll
    for (int n = 0; n < at_once; ++n) {
      const int own = i + n * threads, row = own / vectors;
      if (own >= all) break;
      float x[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) x[j] = columns[n].value(j, norm_factors[row]);
      put_columns<tiles, piece_vectors>(x, row, own - row * vectors,
                                        rows + row * shape.division.columns * 2, factors);
    }
  }
}

// factors[row] ← 1 / the root mean square of a row; a warp takes a row, or all take the only one.
__device__ __forceinline__ void find_norm_factors(const Rows& shape, float* factors,
                                                  float* scratch) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  const bool alone = shape.m == 1;
  for (int row = alone ? 0 : warp; row < shape.m; row += alone ? 1 : warps) {
    const auto* from = reinterpret_cast<const float4*>(shape.unnormed + row * shape.a_stride);
    float squares = 0;
#pragma unroll 4
    for (int i = alone ? thread : thread % 32; i < shape.k / 4; i += alone ? threads : 32) {
      const float4 four = __ldcg(from + i);
      squares += four.x * four.x + four.y * four.y + four.z * four.z + four.w * four.w;
    }
    squares = alone ? block_sum(squares, scratch) : warp_sum(squares);
    factors[row] = 1.0f / sqrtf(squares / static_cast<float>(shape.k) + shape.epsilon);
  }
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

inline size_t round_to(size_t bytes) { return (bytes + 127) / 128 * 128; }

template <class Weights, int tiles>
Division divide(const Weights& weight, const Rows& shape, int block_strips) {
  const auto kept = [](int count, size_t each) { return static_cast<size_t>(count) * each; };
  const int pieces = (weight.pieces + shape.split - 1) / shape.split;
  Division division{};
  division.columns = pieces * Weights::columns;
  division.rows = round_to(kept(shape.m * division.columns, sizeof(__half)));
  division.factors = round_to(kept(pieces * tiles * tile_rows, sizeof(float2)));
  division.slots = ring * threads * Weights::vectors * sizeof(uint4);
  division.affine = ring * warps * affine_bytes;
  division.later = kept(warps * tiles * 32, sizeof(float4));
  division.sums = kept(block_strips * tiles * 32, sizeof(float4));
  return division;
}

// Clusters of `split` blocks that run at once, one block a multiprocessor.
template <class Weights>
int clusters_at_once(const Context& context, int split) {
  if (split == 1) return multiprocessors(context.device.index);
  static std::mutex mutex;
  static std::map<std::pair<int, int>, int> known;  // by device and split
  const std::lock_guard lock(mutex);
  int& found = known[{context.device.index, split}];
  if (found == 0) {
    const auto kernel = few_rows_kernel<Weights, 1>;
    const size_t bytes = most_shared_memory(context) * 3 / 4;
    check(
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "preparing a product");
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned int>(split), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim =
        static_cast<unsigned int>(multiprocessors(context.device.index) / split * split);
    config.blockDim = threads;
    config.dynamicSmemBytes = bytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    check(cudaOccupancyMaxActiveClusters(&found, kernel, &config), "preparing a product");
    found = std::max(found, 1);
  }
  return found;
}

// What a kernel may use; a little is left for what it declares itself.
inline size_t shared_limit(const Context& context) { return most_shared_memory(context) - 1024; }

// Sets shape.division; returns the number of clusters.
template <class Weights, int tiles>
int lay_out(const Context& context, const Weights& weight, Rows& shape) {
  const int at_once = clusters_at_once<Weights>(context, shape.split);
  const int most_strips = static_cast<int>(most_sum_bytes / (tiles * 32 * sizeof(float4)));
  const int turns = (weight.strips + at_once * most_strips - 1) / (at_once * most_strips);
  const int clusters = std::min(at_once * turns, weight.strips);
  shape.division = divide<Weights, tiles>(weight, shape, (weight.strips + clusters - 1) / clusters);
  return clusters;
}

template <class Weights, int tiles>
void run_pass(const Context& context, const Weights& weight, Rows shape) {
  const int clusters = lay_out<Weights, tiles>(context, weight, shape);
  const auto kernel = few_rows_kernel<Weights, tiles>;
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_limit(context))),
        "preparing a product");
  launch_early({static_cast<unsigned int>(clusters * shape.split), threads, shape.division.all(),
                enter(context), static_cast<unsigned int>(shape.split)},
               "matmul", kernel, weight, shape);
}

inline bool starts_at_sixteen_bytes(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

inline bool has_clusters(const Context& context) {
  int has = 0;
  check(cudaDeviceGetAttribute(&has, cudaDevAttrClusterLaunch, context.device.index),
        "reading the properties of a GPU");
  return has != 0;
}

// Blocks that share the columns of a strip: as few as keep the rows of a block short, since
// clusters start later and adding up takes time.
template <class Weights>
int usual_split(const Context& context, const Weights& weight, int rows) {
  if (!has_clusters(context)) return 1;
  const int processors = multiprocessors(context.device.index);
  const auto row_bytes = static_cast<int64_t>(rows) * weight.pieces * Weights::columns * 2;
  int split = 1;
  while (split < 4 && row_bytes / split > usual_row_bytes &&
         weight.strips / processors * 2 * split <= usual_strips) {
    split *= 2;
  }
  return split;
}

// Rows of one pass, no more than shape.m, that fit into shared memory; 0: not even one does. Takes
// more blocks for a strip where that helps.
template <class Weights>
int rows_that_fit(const Context& context, const Weights& weight, Rows shape, int& split) {
  // Every block has something to do.
  const int most = std::min(has_clusters(context) ? most_split : 1, weight.pieces);
  while (split > most) split /= 2;
  for (int rows = std::min(shape.m, pass_rows); rows > 0;
       rows = rows > tile_rows ? tile_rows : rows / 2) {
    shape.m = rows;
    for (shape.split = split; shape.split <= most; shape.split *= 2) {
      rows > tile_rows ? lay_out<Weights, 2>(context, weight, shape)
                       : lay_out<Weights, 1>(context, weight, shape);
      if (shape.division.all() > shared_limit(context)) continue;
      split = shape.split;
      return rows;
    }
  }
  return 0;
}

// Whether rows can be normed on the way.
inline bool norm_fits(const MatmulWork& work, const RowNorm& norm) {
  return work.a.size(0) <= tile_rows && norm.weight.dtype() == DType::bf16 &&
         work.a.size(1) % 8 == 0 && work.a.stride(0) % 4 == 0 &&
         starts_at_sixteen_bytes(norm.weight.raw()) && starts_at_sixteen_bytes(work.a.raw());
}

// One pass over the weights for every sixteen rows. `split` 0 is the usual one. False, with nothing
// done, where the columns are too many.
template <class Weights>
bool run_passes(const Context& context, const MatmulWork& work, const Weights& weight,
                const RowNorm& norm, int split) {
  Rows shape{};
  shape.a_stride = work.a.stride(0);
  shape.epsilon = norm.epsilon;
  shape.n = static_cast<int>(work.out.size(1));
  shape.k = static_cast<int>(work.a.size(1));
  shape.bias = work.bias.raw();
  shape.bias_type = work.bias.dtype();
  shape.accumulate = work.accumulate;
  shape.out_type = work.out.dtype();
  shape.out_stride = work.out.stride(0);
  shape.m = static_cast<int>(work.out.size(0));
  shape.split = split > 0 ? split : usual_split(context, weight, std::min(shape.m, pass_rows));
  const int rows_at_once = rows_that_fit(context, weight, shape, shape.split);
  if (rows_at_once == 0) return false;
  for (int64_t row = 0; row < work.out.size(0); row += rows_at_once) {
    shape.m = static_cast<int>(std::min<int64_t>(rows_at_once, work.out.size(0) - row));
    const ConstTensorView a = work.a.rows(row, shape.m);
    if (norm.weight.raw() != nullptr) {
      shape.unnormed = device_data<float>(a);
      shape.norm = device_data<__nv_bfloat16>(norm.weight);
    } else {
      shape.a = device_data<__nv_bfloat16>(a);
      shape.whole_vectors =
          starts_at_sixteen_bytes(a.raw()) && shape.a_stride % 8 == 0 && shape.k % 8 == 0;
    }
    shape.out = work.out.rows(row, shape.m).raw();
    shape.m > tile_rows ? run_pass<Weights, 2>(context, weight, shape)
                        : run_pass<Weights, 1>(context, weight, shape);
  }
  return true;
}

}  // namespace kinora::cuda::few
