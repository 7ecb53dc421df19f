// Products of dozens of rows, where reading the weights is still most of the work, but the rows of
// a are so many that warps must not read them one by one. A cluster of blocks has some units of
// eight rows of the weights (gated: eight of gate and the same eight of up), and its blocks share
// the columns. In a block the copy engine brings units and rows of a, 64 columns at a time, and
// each warpgroup multiplies four strips of sixteen rows with all rows. At the end every block sends
// its sums to the block of its cluster that writes them out.
#pragma once

#include "ops/clusters_cuda.h"
#include "ops/hopper_instructions.cuh"
#include "ops/matmul_parts_cuda.cuh"

namespace kinora::cuda::tiles {

constexpr int chunk = 64;                               // columns of a stage
constexpr int row_bytes = chunk * 2;                    // of a stage
constexpr uint32_t eight_bytes = 8 * row_bytes;         // of a stage
constexpr uint32_t strip_bytes = 2 * eight_bytes;       // of a stage
constexpr int tile_rows = 64;                           // of a warpgroup, a strip each warp
constexpr uint32_t tile_bytes = tile_rows * row_bytes;  // of a stage
constexpr int most_tiles = 5;                           // of a block
constexpr int most_stages = 12;
constexpr uint32_t tile_alignment = 1024;                // bytes after which a swizzle repeats
constexpr uint32_t message_bytes = 32 * sizeof(float4);  // sums of a strip with eight rows of a

struct TilesShape {
  // (columns, 8 rows, 1 or gate and up, units). A box has the units of a cluster, of one that has
  // the most and of one that has one less: a single thread asks for boxes, and with a box
  // for every strip products took up to 9 % longer.
  CUtensorMap weight, weight_less;
  CUtensorMap a;     // (columns, rows, 1, 1)
  const void* bias;  // of the type `bias_type`; null: none
  DType bias_type, out_type;
  bool accumulate, gated;
  int m, n;
  int chunks, units;  // of the whole product
  int split;          // blocks of a cluster
  int most_units;     // of a cluster
  int stages, most_owned;
  uint32_t inbox;  // where sums of other blocks arrive, behind the stages
  void* out;
  int64_t out_stride;
};

__host__ __device__ __forceinline__ int part_of(int all, int which, int parts) {
  return all * which / parts;
}

// d += a · bᵀ: 64 × 2·size × 16, both from shared memory with rows along k.
__device__ __forceinline__ void multiply_tile(float (&d)[16], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "%16, %17, 1, 1, 1, 0, 0;\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15])
      : "l"(a), "l"(b));
}
__device__ __forceinline__ void multiply_tile(float (&d)[24], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23}, "
      "%24, %25, 1, 1, 1, 0, 0;\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
      : "l"(a), "l"(b));
}
__device__ __forceinline__ void multiply_tile(float (&d)[32], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, 1, 1, 1, 0, 0;\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b));
}

// Waits until at most `Left` groups of products are under way.
template <int Left, int Size>
__device__ __forceinline__ void wait_for_products(float (&d)[Size]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Left) : "memory");
#pragma unroll
  for (int i = 0; i < Size; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

__device__ __forceinline__ void write_out(const TilesShape& shape, int64_t at, float value) {
  if (shape.out_type == DType::bf16) {
    static_cast<__nv_bfloat16*>(shape.out)[at] = from_float<__nv_bfloat16>(value);
  } else {
    static_cast<float*>(shape.out)[at] = value;
  }
}

// A strip of a cluster, of which the second half may be missing.
struct Strip {
  int first;  // output
  bool whole;
};

// What a lane has of a strip with eight rows of a: outputs lane / 4 and eight more (gate and up
// where gated), each of rows 2 · (lane % 4) and the next.
struct LanePlace {
  int64_t at[2];  // the first output of either row
  bool there[2];

  __device__ LanePlace(const TilesShape& shape, const Strip& strip, int rows_from, int lane) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = rows_from + lane % 4 * 2 + j;
      there[j] = row < shape.m;
      at[j] = row * shape.out_stride + strip.first + lane / 4;
    }
  }
};

// What the sums are added to.
__device__ __forceinline__ void read_base(const TilesShape& shape, const Strip& strip,
                                          const LanePlace& place, float (&base)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int j = i % 2;
    const bool there = shape.accumulate && place.there[j] && (i < 2 || strip.whole);
    base[i] = there ? number_at(shape.out, shape.out_type, place.at[j] + i / 2 * 8) : 0;
  }
}

__device__ __forceinline__ void write_sums(const TilesShape& shape, const Strip& strip,
                                           const LanePlace& place, const float (&bias)[2],
                                           const float* sum, const float (&base)[4]) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    if (!place.there[j]) continue;
    const float first = sum[j] + bias[0], second = sum[2 + j] + bias[1];
    if (shape.gated) {
      const float gate = __fdividef(first, 1.0f + __expf(-first));
      write_out(shape, place.at[j], gate * second + base[j]);
    } else {
      write_out(shape, place.at[j], first + base[j]);
      if (strip.whole) write_out(shape, place.at[j] + 8, second + base[2 + j]);
    }
  }
}

// Width: rows of a, those beyond the last zeros.
template <int Width>
__global__ void __launch_bounds__((most_tiles * 4 + 1) * 32, 1)
    tiles_kernel(const __grid_constant__ TilesShape shape) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)  // other architectures get an empty kernel
  constexpr int eights = Width / 8;
  constexpr uint32_t a_bytes = Width * row_bytes;
  extern __shared__ char unaligned[];
  __shared__ uint64_t full[most_stages], empty[most_stages], inbox_full;
  char* const memory = unaligned + (-hopper::shared_address(unaligned) & (tile_alignment - 1));
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int warps = static_cast<int>(blockDim.x) / 32 - 1;  // that multiply
  const int split = shape.split, stages = shape.stages;
  const int rank = static_cast<int>(blockIdx.x) % split;
  const int cluster = static_cast<int>(blockIdx.x) / split;
  const int clusters = static_cast<int>(gridDim.x) / split;
  const int first = part_of(shape.units, cluster, clusters);
  const int count = part_of(shape.units, cluster + 1, clusters) - first;
  const int strips = shape.gated ? count : (count + 1) / 2;
  const int column = part_of(shape.chunks, rank, split);
  const int steps = part_of(shape.chunks, rank + 1, split) - column;
  const int owned_from = part_of(eights, rank, split);
  const int owned = part_of(eights, rank + 1, split) - owned_from;
  const uint32_t unit_bytes = shape.gated ? strip_bytes : eight_bytes;
  const uint32_t a_at = static_cast<uint32_t>(shape.most_units) * unit_bytes;
  const uint32_t stage_bytes = a_at + a_bytes;
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      hopper::barrier_init(&full[i], 1);
      hopper::barrier_init(&empty[i], static_cast<uint32_t>(warps));
    }
    hopper::barrier_init(&inbox_full, 1);
    hopper::barrier_init_visible();
    if (split > 1) {
      hopper::barrier_arrive_expect(&inbox_full,
                                    static_cast<uint32_t>(split * strips * owned) * message_bytes);
    }
  }
  __syncthreads();
  // Nothing is sent to a block before it is there.
  if (split > 1) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");

  if (warp == warps) {
    if (lane == 0) {
      const CUtensorMap* weight = count == shape.most_units ? &shape.weight : &shape.weight_less;
      const auto bring_weights = [&](int step, int stage) {
        hopper::barrier_arrive_expect(&full[stage],
                                      static_cast<uint32_t>(count) * unit_bytes + a_bytes);
        hopper::copy_box(memory + static_cast<uint32_t>(stage) * stage_bytes, weight, &full[stage],
                         (column + step) * chunk, 0, 0, first);
      };
      const auto bring_rows = [&](int step, int stage) {
        hopper::copy_box(memory + static_cast<uint32_t>(stage) * stage_bytes + a_at, &shape.a,
                         &full[stage], (column + step) * chunk, 0, 0, 0);
      };
      const int ahead = min(stages, steps);
      for (int step = 0; step < ahead; ++step) bring_weights(step, step);
      wait_for_previous();
      for (int step = 0; step < ahead; ++step) bring_rows(step, step);
      int stage = 0;
      uint32_t phase = 0;
      for (int step = ahead; step < steps; ++step) {
        hopper::barrier_wait<false>(&empty[stage], phase);
        bring_weights(step, stage);
        bring_rows(step, stage);
        if (++stage == stages) stage = 0, phase ^= 1;
      }
    }
    __syncwarp();
    // When all has been asked for, and not before: clusters leave a few multiprocessors idle, where
    // several blocks of the next kernels would come to lie while others had none.
    let_next_start();
    if (split > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    return;
  }

  const int own_strip = min(warp, strips - 1);  // of the last tile some may be none
  const Strip strip{(first + (shape.gated ? own_strip : own_strip * 2)) * 8,
                    shape.gated || own_strip * 2 + 1 < count};
  float bias[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t further = shape.gated ? shape.n : 8;
    bias[half] = half == 0 || strip.whole
                     ? bias_of(shape.bias, shape.bias_type, half * further + strip.first + lane / 4)
                     : 0;
  }
  wait_for_previous();  // who reads `out` may still run, and no row of a is there before
  // What the first sums are added to comes while these are made: 18 µs instead of 21 for 48 rows,
  // on average of a layer's products. A block of a split product seldom has more.
  constexpr int early = 2;
  const auto lane_place = [&](int own) {
    return LanePlace(shape, strip, (owned_from + own) * 8, lane);
  };
  float base[early][4] = {};
  if (split > 1) {
#pragma unroll
    for (int own = 0; own < early; ++own) {
      if (own < owned) read_base(shape, strip, lane_place(own), base[own]);
    }
  }
  float sum[Width / 2] = {};
  {
    int stage = 0, before = 0;
    uint32_t phase = 0;
    for (int step = 0; step < steps; ++step) {
      hopper::barrier_wait<false>(&full[stage], phase);
      const char* at = memory + static_cast<uint32_t>(stage) * stage_bytes;
      const uint64_t left =
          hopper::tile_descriptor(at + static_cast<uint32_t>(warp / 4) * tile_bytes, 16);
      const uint64_t right = hopper::tile_descriptor(at + a_at, 16);
      hopper::mma_fence();
#pragma unroll
      for (int i = 0; i < chunk / 16; ++i) multiply_tile(sum, left + 2 * i, right + 2 * i);
      hopper::mma_commit();
      wait_for_products<1>(sum);
      if (step > 0 && lane == 0) hopper::barrier_arrive(&empty[before]);
      before = stage;
      if (++stage == stages) stage = 0, phase ^= 1;
    }
    wait_for_products<0>(sum);
  }
  if (split > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  if (warp >= strips) return;
  if (split == 1) {
#pragma unroll
    for (int j = 0; j < eights; ++j) {
      const LanePlace at(shape, strip, j * 8, lane);
      float own_base[4];
      read_base(shape, strip, at, own_base);
      write_sums(shape, strip, at, bias, sum + j * 4, own_base);
    }
    return;
  }
  // [blocks, own eights of rows, strips, lanes]
  const uint32_t inbox = hopper::shared_address(memory) + shape.inbox;
  const auto place = [&](int from, int own) {
    return inbox +
           static_cast<uint32_t>((from * shape.most_owned + own) * strips + warp) * message_bytes +
           static_cast<uint32_t>(lane) * 16;
  };
#pragma unroll
  for (int j = 0; j < eights; ++j) {
    const int to = ((j + 1) * split - 1) / eights;
    send_four(place(rank, j - part_of(eights, to, split)), hopper::shared_address(&inbox_full), to,
              sum + j * 4);
  }
  if (owned == 0) return;
  hopper::barrier_wait<false>(&inbox_full, 0);
  for (int own = 0; own < owned; ++own) {
    float all[4] = {};
    for (int from = 0; from < split; ++from) {
      float4 part;
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(part.x), "=f"(part.y), "=f"(part.z), "=f"(part.w)
                   : "r"(place(from, own))
                   : "memory");
      all[0] += part.x;
      all[1] += part.y;
      all[2] += part.z;
      all[3] += part.w;
    }
    const LanePlace at = lane_place(own);
    float own_base[4];
    if (own < early) {
#pragma unroll
      for (int i = 0; i < 4; ++i) own_base[i] = own == 0 ? base[0][i] : base[1][i];
    } else {
      read_base(shape, strip, at, own_base);
    }
    write_sums(shape, strip, at, bias, all, own_base);
  }
#endif
}

}  // namespace kinora::cuda::tiles
