// Products of few rows, where reading the weights is all the work. A block takes some strips of
// sixteen rows of the weights and its eight warps share the columns. Every lane brings its own
// bytes of a piece of 64 columns through a ring in shared memory, turns them into bf16 in
// registers, in the order in which the tensor cores take them, and multiplies them with eight or
// sixteen rows. Scales are applied to the sums of a piece. Blocks of one cluster take parts of the
// columns, so that each needs only that part of the rows, and add up at the end.
//
// A Source says what the weights are (packed_few_cuda.cu, matmul_few_cuda.cu):
//   vectors, ring     sixteen bytes of a lane in a piece; pieces of a warp on their way or in use
//   in_order          a lane's bytes are neighbours in a row, and so are those of the rows it meets
//   strips, pieces, paired
//   ask(slots, …)     starts the copies of a lane's part of a piece
//   Piece             that part: put(vector, bytes), scale(…), left(registers, step), add(sum,
//   part) scale_bytes(), zero_bytes()   what a lane keeps of a piece beside its codes
#pragma once

#include <cooperative_groups.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "base/cuda_support.h"
#include "ops/cuda_kernels.h"
#include "ops/matmul_parts_cuda.cuh"

namespace kinora::cuda::few {

constexpr int warps = 8;
constexpr int threads = 32 * warps;
constexpr int strip_piece = 64;      // columns
constexpr int piece_steps = 4;       // products of the tensor cores in a piece
constexpr int together = 2;          // strips that share the rows a warp has loaded
constexpr int pass_rows = 16;        // rows of a in one pass over the weights
constexpr int tile_rows = 8;         // rows of a in one product of the tensor cores
constexpr int round_pieces = warps;  // pieces that the warps of a block take in turn
// Two blocks of neighbouring kernels share a multiprocessor below this; more only if needed.
constexpr size_t usual_shared_bytes = 111 * 1024;

// How shared memory is divided; all sizes in bytes.
struct Division {
  int chunk;      // columns of the rows that are there at once
  size_t rows;    // [m, chunk] bf16
  size_t slots;   // [ring, threads] of codes
  size_t scales;  // [ring, threads] of two scales
  size_t zeros;   // [ring, threads] of two zero points, or nothing
  size_t parts;   // [2, warps, together, tiles, 32] of four sums
  size_t sums;    // [strips of a block, tiles, 32] of four sums

  size_t all() const { return rows + slots + scales + zeros + parts + sums; }
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
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void load_four(uint32_t* r, uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

template <int bytes>
__device__ __forceinline__ void copy_own(void* target, const void* source) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(target));
  if constexpr (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(source) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(source), "n"(bytes)
                 : "memory");
  }
}

// Sixteen bytes, or zeros.
__device__ __forceinline__ void copy_or_clear(void* target, const void* source, bool inside) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(target));
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(source),
               "r"(inside ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void load_vector(uint32_t* r, uint32_t address) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Sixteen bytes of a row lie where those that are read together meet different banks: eight rows of
// one column, or four columns of two rows.
template <class Source>
__device__ __forceinline__ int turn_of(int row) {
  return Source::in_order ? (row & 1) << 2 : row & 7;
}

// rows ← columns [first, first + count) of a, bf16, followed by zeros up to a whole piece.
template <class Source>
__device__ __forceinline__ void bring_rows(const Rows& shape, const float* factors, char* rows,
                                           int first, int count) {
  const int vectors = (count + strip_piece - 1) / strip_piece * strip_piece / 8;
  const int row_bytes = shape.division.chunk * 2;
  for (int i = static_cast<int>(threadIdx.x); i < shape.m * vectors; i += threads) {
    const int row = i / vectors, vector = i % vectors, column = first + vector * 8;
    uint4 eight = make_uint4(0, 0, 0, 0);
    if (shape.unnormed != nullptr) {
      if (column < shape.k) {  // k is a multiple of eight here
        const auto* from =
            reinterpret_cast<const float4*>(shape.unnormed + row * shape.a_stride + column);
        const float4 low = __ldcg(from), high = __ldcg(from + 1);
        const uint4 scale = __ldg(reinterpret_cast<const uint4*>(shape.norm + column));
        const float factor = factors[row];
        const auto scaled = [&](float x, float y, uint32_t by) {
          return raw_of(__floats2bfloat162_rn(x * factor * __uint_as_float(by << 16),
                                              y * factor * __uint_as_float(by & 0xffff0000u)));
        };
        eight = make_uint4(scaled(low.x, low.y, scale.x), scaled(low.z, low.w, scale.y),
                           scaled(high.x, high.y, scale.z), scaled(high.z, high.w, scale.w));
      }
    } else if (shape.whole_vectors) {
      if (column < shape.k) {
        eight = __ldcg(reinterpret_cast<const uint4*>(shape.a + row * shape.a_stride + column));
      }
    } else {
      __nv_bfloat16 values[8];
      for (int j = 0; j < 8; ++j) {
        values[j] = column + j < shape.k ? shape.a[row * shape.a_stride + column + j]
                                         : __float2bfloat16_rn(0.0f);
      }
      memcpy(&eight, values, sizeof(eight));
    }
    *reinterpret_cast<uint4*>(rows + row * row_bytes + ((vector ^ turn_of<Source>(row)) << 4)) =
        eight;
  }
}

// factors[row] ← 1 / the root mean square of a row; a warp takes a row, or all take the only one.
__device__ __forceinline__ void norm_factors(const Rows& shape, float* factors, float* scratch) {
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

// Where another block of the cluster has what this one has at `own`.
__device__ __forceinline__ const float4* of_block(float4* own, int rank, int split) {
#if __CUDA_ARCH__ >= 900
  if (split > 1) {
    return cooperative_groups::this_cluster().map_shared_rank(own, static_cast<unsigned int>(rank));
  }
#endif
  return own;
}

template <class Source, int tiles>
__global__ void __launch_bounds__(threads, 2) few_rows_kernel(Source weight, Rows shape) {
  constexpr int vectors = Source::vectors;
  extern __shared__ __align__(128) char memory[];
  __shared__ float factors[pass_rows];
  __shared__ float scratch[32];
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
  const int end = share(weight.pieces, rank + 1, shape.split);
  const int own = end - begin > warp ? (end - begin - warp + warps - 1) / warps : 0;

  char* rows = memory;
  auto* slots = reinterpret_cast<uint4*>(rows + shape.division.rows) + thread;
  auto* scale_slots = reinterpret_cast<float2*>(rows + shape.division.rows + shape.division.slots);
  scale_slots += thread;
  char* after = rows + shape.division.rows + shape.division.slots + shape.division.scales;
  uint32_t* zero_slots = reinterpret_cast<uint32_t*>(after) + thread;
  auto* parts = reinterpret_cast<float4*>(after + shape.division.zeros);
  auto* sums = reinterpret_cast<float4*>(after + shape.division.zeros + shape.division.parts);

  // The next piece to ask for: strips two by two, and the warp's pieces of these.
  int wanted = own * count, next_pair = 0, next_own = 0, next_strip = 0, next_slot = 0;
  const auto ask = [&] {
    if (wanted > 0) {
      --wanted;
      const int strip = first + next_pair + next_strip, at = begin + warp + next_own * warps;
      weight.ask(slots + next_slot * vectors * threads, scale_slots + next_slot * threads,
                 zero_slots + next_slot * threads, strip, at, lane);
      next_slot = next_slot + 1 == Source::ring ? 0 : next_slot + 1;
      if (++next_strip == min(together, count - next_pair)) {
        next_strip = 0;
        if (++next_own == own) {
          next_own = 0;
          next_pair += together;
        }
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
#pragma unroll 1
  for (int i = 0; i < Source::ring - 1; ++i) ask();
  wait_for_previous();
  if (shape.unnormed != nullptr) {
    norm_factors(shape, factors, scratch);
    __syncthreads();
  }
  const int chunk_pieces = shape.division.chunk / strip_piece;
  const bool one_chunk = end - begin <= chunk_pieces;
  const auto bring = [&](int from) {
    bring_rows<Source>(shape, factors, rows, from * strip_piece,
                       min(chunk_pieces, end - from) * strip_piece);
    __syncthreads();
  };
  if (one_chunk) bring(begin);

  const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(rows));
  int slot = 0;
#pragma unroll 1
  for (int pair = 0; pair < count; pair += together) {
    const int here = min(together, count - pair);
    float sum[together][tiles][4] = {};
#pragma unroll 1
    for (int chunk = begin; chunk < end; chunk += chunk_pieces) {
      if (!one_chunk) {
        __syncthreads();
        bring(chunk);
      }
      const int chunk_end = min(end, chunk + chunk_pieces);
#pragma unroll 1
      for (int at = chunk + warp; at < chunk_end; at += warps) {
        uint32_t right[tiles][2 * piece_steps];
#pragma unroll
        for (int t = 0; t < tiles; ++t) {
          // Rows that are not there are read as the first: nothing is written of them.
          const int wanted_row = t * tile_rows + (Source::in_order ? lane / 4 : lane % 8);
          const int row = wanted_row < shape.m ? wanted_row : 0;
          const uint32_t row_at = base + static_cast<uint32_t>(row * shape.division.chunk * 2);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int vector =
                (at - chunk) * 8 + half * 4 + (Source::in_order ? lane % 4 : lane / 8);
            const uint32_t place =
                row_at + static_cast<uint32_t>((vector ^ turn_of<Source>(row)) << 4);
            Source::in_order ? load_vector(right[t] + half * 4, place)
                             : load_four(right[t] + half * 4, place);
          }
        }
#pragma unroll
        for (int s = 0; s < together; ++s) {
          if (s >= here) break;
          asm volatile("cp.async.wait_group %0;" ::"n"(Source::ring - 2) : "memory");
          typename Source::Piece piece;
#pragma unroll
          for (int v = 0; v < vectors; ++v) {
            piece.put(v, slots[(slot * vectors + v) * threads]);
          }
          piece.scale(weight, scale_slots + slot * threads, zero_slots + slot * threads);
          slot = slot + 1 == Source::ring ? 0 : slot + 1;
          ask();  // into the slot before this one, which has been read
          float part[tiles][4] = {};
#pragma unroll
          for (int step = 0; step < piece_steps; ++step) {
            uint32_t left[4];
            piece.left(left, step);
#pragma unroll
            for (int t = 0; t < tiles; ++t) {
              multiply(part[t], left, right[t][2 * step], right[t][2 * step + 1]);
            }
          }
#pragma unroll
          for (int t = 0; t < tiles; ++t) piece.add(sum[s][t], part[t]);
        }
      }
    }
    // What the warps have, in turns in two places: a barrier for each is enough.
    float4* place = parts + pair / together % 2 * (warps * together * tiles * 32);
#pragma unroll
    for (int s = 0; s < together; ++s) {
#pragma unroll
      for (int t = 0; t < tiles; ++t) {
        place[((warp * together + s) * tiles + t) * 32 + lane] =
            make_float4(sum[s][t][0], sum[s][t][1], sum[s][t][2], sum[s][t][3]);
      }
    }
    __syncthreads();
    for (int i = thread; i < here * tiles * 32; i += threads) {
      float4 all = place[i];
#pragma unroll
      for (int w = 1; w < warps; ++w) {
        const float4 more = place[w * together * tiles * 32 + i];
        all.x += more.x;
        all.y += more.y;
        all.z += more.z;
        all.w += more.w;
      }
      sums[pair * tiles * 32 + i] = all;
    }
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  meet_cluster(shape.split);
  const int outputs = weight.paired ? 8 : 16;
  for (int i = thread; i < count * tiles * 32; i += threads) {
    const int strip = i / (tiles * 32), tile = i / 32 % tiles;
    if (strip % shape.split != rank) continue;
    float total[4] = {};
    for (int r = 0; r < shape.split; ++r) {
      const float4 some = of_block(sums, r, shape.split)[i];
      total[0] += some.x;
      total[1] += some.y;
      total[2] += some.z;
      total[3] += some.w;
    }
    const int column = (first + strip) * outputs + i % 32 / 4;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = tile * tile_rows + i % 4 * 2 + j;
      if (row >= shape.m) continue;
      const auto biased = [&](float value, int at) {
        return value + bias_of(shape.bias, shape.bias_type, at);
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
  meet_cluster(shape.split);  // nobody leaves while others read its sums
}

inline size_t round_to(size_t bytes) { return (bytes + 127) / 128 * 128; }

template <class Source>
Division divide(const Source& weight, const Rows& shape, int tiles, int block_strips, size_t most) {
  const auto kept = [](int count, size_t each) { return static_cast<size_t>(count) * each; };
  Division division{};
  division.slots = kept(Source::ring * threads * Source::vectors, sizeof(uint4));
  division.scales = kept(Source::ring * threads, weight.scale_bytes());
  division.zeros = kept(Source::ring * threads, weight.zero_bytes());
  division.parts = kept(2 * warps * together * tiles * 32, sizeof(float4));
  division.sums = kept(block_strips * tiles * 32, sizeof(float4));
  const int range = (weight.pieces + shape.split - 1) / shape.split;
  const int whole = (range + round_pieces - 1) / round_pieces * round_pieces;
  const auto with = [&](int pieces) {
    division.chunk = pieces * strip_piece;
    division.rows = round_to(kept(shape.m * division.chunk, sizeof(__nv_bfloat16)));
  };
  with(whole);
  const size_t limit = division.all() <= usual_shared_bytes ? usual_shared_bytes : most;
  for (int pieces = whole; pieces > round_pieces && division.all() > limit;) {
    with(pieces -= round_pieces);
  }
  return division;
}

// Clusters of `split` blocks that run at once, one block a multiprocessor.
template <class Source>
int clusters_at_once(const Context& context, int split) {
  if (split == 1) return multiprocessors(context.device.index);
  static std::mutex mutex;
  static std::map<std::pair<int, int>, int> known;  // by device and split
  const std::lock_guard lock(mutex);
  int& found = known[{context.device.index, split}];
  if (found == 0) {
    const auto kernel = few_rows_kernel<Source, 1>;
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

template <class Source, int tiles>
void run_pass(const Context& context, const Source& weight, Rows shape) {
  const int clusters = std::min(clusters_at_once<Source>(context, shape.split), weight.strips);
  const int block_strips = (weight.strips + clusters - 1) / clusters;
  // A little is left for what the kernel declares itself.
  const size_t most = most_shared_memory(context) - 1024;
  shape.division = divide(weight, shape, tiles, block_strips, most);
  const auto kernel = few_rows_kernel<Source, tiles>;
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most)),
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

// Blocks that share the columns of a strip: enough that each has little to bring of the rows, as
// long as its warps have something to do.
inline int usual_split(const Context& context, int pieces) {
  if (!has_clusters(context)) return 1;
  return pieces >= 2 * warps ? 4 : pieces >= warps ? 2 : 1;
}

// Whether rows can be normed on the way.
inline bool norm_fits(const MatmulWork& work, const RowNorm& norm) {
  return work.a.size(0) <= tile_rows && norm.weight.dtype() == DType::bf16 &&
         work.a.size(1) % 8 == 0 && work.a.stride(0) % 4 == 0 &&
         starts_at_sixteen_bytes(norm.weight.raw()) && starts_at_sixteen_bytes(work.a.raw());
}

// One pass over the weights for every sixteen rows. `split` 0 is the usual one.
template <class Source>
void run_passes(const Context& context, const MatmulWork& work, const Source& weight,
                const RowNorm& norm, int split) {
  Rows shape{};
  shape.split = split > 0 ? split : usual_split(context, weight.pieces);
  shape.a_stride = work.a.stride(0);
  shape.epsilon = norm.epsilon;
  shape.n = static_cast<int>(work.out.size(1));
  shape.k = static_cast<int>(work.a.size(1));
  shape.bias = work.bias.raw();
  shape.bias_type = work.bias.dtype();
  shape.accumulate = work.accumulate;
  shape.out_type = work.out.dtype();
  shape.out_stride = work.out.stride(0);
  for (int64_t row = 0; row < work.out.size(0); row += pass_rows) {
    shape.m = static_cast<int>(std::min<int64_t>(pass_rows, work.out.size(0) - row));
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
    shape.m > tile_rows ? run_pass<Source, 2>(context, weight, shape)
                        : run_pass<Source, 1>(context, weight, shape);
  }
}

}  // namespace kinora::cuda::few
