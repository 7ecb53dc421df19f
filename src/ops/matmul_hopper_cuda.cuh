// Products with few rows of a on Hopper cards. Reading the weights is nearly all the work: every
// multiprocessor gets an equal share of their rows and its copy engine streams it, with the same
// columns of a, through a ring in shared memory without a pause. Two warpgroups multiply from
// there.
//
// Where a share would be a few rows only, a cluster of blocks takes a larger share together and
// each block some of its columns: rows, in groups of eight, divide more evenly, and a is read fewer
// times. The blocks' sums meet through the cluster's shared memory, always in the same order.
#pragma once

#include "base/hopper_instructions.cuh"
#include "ops/matmul_parts_cuda.cuh"

namespace kinora::hopper {

constexpr int few_threads = 2 * 128 + 64;  // two warpgroups that multiply, two warps that copy
constexpr int few_chunk = 64;              // columns of a box: 128 bytes of a row
constexpr int few_unit_bytes = 8 * few_chunk * 2;
constexpr int few_most_units = 24;  // of a pass: three tiles of 64 rows of weights
constexpr int few_most_stages = 16;
// Two blocks of neighbouring kernels share a multiprocessor.
constexpr int few_ring_bytes = 110 * 1024;
constexpr int few_bytes = few_ring_bytes + 1024;

// The outputs are divided among shares × passes as evenly as groups of eight allow: each takes
// `groups` of them or one more. Starting a copy takes its thread a tenth of a microsecond, however
// large it is, so a stage's weights are one copy.
struct FewRows {
  CUtensorMap weights[2];  // boxes of `groups` groups and of one more, `deep` × 64 columns
  CUtensorMap a;           // boxes of MostM rows
  const void* bias;        // of the type `bias_type`; null: none
  DType bias_type;
  bool accumulate;
  int m;
  int split;   // blocks of a cluster; 1: no clusters
  int passes;  // of a block; 1 with clusters
  int groups;
  int deep;  // chunks of a stage
  int n, k;
  int64_t out_stride;
};

// Matrix products of a warpgroup: d[64 × N] += a[64 × 16] · b[N × 16]ᵀ, both from shared memory.
__device__ __forceinline__ void multiply(float (&d)[4], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, "
      "0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "l"(a), "l"(b));
}
__device__ __forceinline__ void multiply(float (&d)[8], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, "
      "%9, 1, 1, 1, 0, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7])
      : "l"(a), "l"(b));
}
__device__ __forceinline__ void multiply(float (&d)[16], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
      "%9, %10, %11, %12, %13, %14, %15}, %16, %17, 1, 1, 1, 0, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15])
      : "l"(a), "l"(b));
}
__device__ __forceinline__ void multiply(float (&d)[32], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
      "%9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, "
      "%27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, 0, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b));
}
// Keeps the compiler from reading `d` earlier than here.
template <int Size>
__device__ __forceinline__ void hold(float (&d)[Size]) {
#pragma unroll
  for (int i = 0; i < Size; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Boxes at a row, or at a group of gate and up, of some chunks. Weights pass through the
// second-level cache, a stays there.
constexpr uint64_t pass_through = 0x12F0000000000000ull, stay = 0x14F0000000000000ull;
__device__ __forceinline__ void copy_rows(uint32_t target, const CUtensorMap* map, uint32_t barrier,
                                          int row, int chunk, uint64_t keep) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(target),
      "l"(map), "r"(barrier), "r"(0), "r"(row), "r"(chunk), "l"(keep)
      : "memory");
}
__device__ __forceinline__ void copy_pairs(uint32_t target, const CUtensorMap* map,
                                           uint32_t barrier, int group, int chunk, uint64_t keep) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %3, %3, %4, %5}], [%2], %6;" ::"r"(target),
      "l"(map), "r"(barrier), "r"(0), "r"(group), "r"(chunk), "l"(keep)
      : "memory");
}

__device__ __forceinline__ void meet_cluster() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// The float at this address of shared memory, as block `rank` of the cluster has it.
__device__ __forceinline__ float load_from(uint32_t address, int rank) {
  float value;
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
  return value;
}

// Floats between rows of sums in shared memory; keeps the banks apart.
template <int MostM>
constexpr int few_pitch = MostM == 8 ? 8 : MostM + 8;

// gated: units of gate and of up take turns, so that a thread has both sums of an output.
template <int MostM, bool gated, typename Out>
__global__ void __launch_bounds__(few_threads, 2)
    few_rows_kernel(const __grid_constant__ FewRows work, Out* out) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int parts = gated ? 2 : 1;
  constexpr int pitch = few_pitch<MostM>;
  constexpr int a_bytes = MostM * few_chunk * 2;
  constexpr int group_bytes = parts * few_unit_bytes;
  extern __shared__ char raw[];
  __shared__ uint64_t full[few_most_stages], empty[few_most_stages];
  char* const memory = raw + (1024 - (shared_address(raw) & 1023)) % 1024;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const auto block = static_cast<int>(blockIdx.x);
  const int rank = block % work.split, share = block / work.split;
  const int shares = static_cast<int>(gridDim.x) / work.split, passes = work.passes;
  const int all_groups = (work.n + 7) / 8;
  const auto begin_of = [&](int pass) {
    return static_cast<int>(int64_t{all_groups} * (share * passes + pass) / (shares * passes));
  };
  // Stages of a pass: the block's part of the columns.
  const int all_steps = (work.k / few_chunk + work.deep - 1) / work.deep;
  const int first_step = all_steps * rank / work.split;
  const int steps = all_steps * (rank + 1) / work.split - first_step;
  // A stage: the rows of a, then the weights, chunk after chunk. Products read whole tiles of 64
  // rows of weights, so the last stage leaves room for rows that nobody fills.
  const int stage_bytes = work.deep * (a_bytes + (work.groups + 1) * group_bytes);
  const int stages = min(few_most_stages, (few_ring_bytes - 7 * few_unit_bytes) / stage_bytes);

  if (thread == 0) {
    for (int i = 0; i < few_most_stages; ++i) {
      barrier_init(&full[i], 2);
      barrier_init(&empty[i], 8);
    }
    barrier_init_visible();
  }
  __syncthreads();
  cuda::let_next_start();

  // One thread asks for weights and one for a. The first weights are asked for before the kernel
  // that makes `a` has ended.
  if (thread == 256 || thread == 288) {
    const bool weights = thread == 256;
    if (!weights) cuda::wait_for_previous();
    uint32_t place = shared_address(memory), barrier = shared_address(&full[0]), phase = 1;
    int stage = 0, number = 0;
    for (int pass = 0; pass < passes; ++pass) {
      const int begin = begin_of(pass), groups = begin_of(pass + 1) - begin;
      const auto bytes =
          static_cast<uint32_t>(work.deep * (weights ? groups * group_bytes : a_bytes));
      const CUtensorMap* map = weights ? &work.weights[groups - work.groups] : &work.a;
      for (int step = 0; step < steps; ++step, ++number) {
        if (number >= stages) barrier_wait<false>(&empty[stage], phase);
        const int chunk = (first_step + step) * work.deep;
        barrier_arrive_expect(&full[stage], bytes);
        const uint32_t target = place + static_cast<uint32_t>(work.deep * a_bytes);
        if (!weights) {
          copy_rows(place, map, barrier, 0, chunk, stay);
        } else if (groups > 0) {
          if constexpr (gated) {
            copy_pairs(target, map, barrier, begin, chunk, pass_through);
          } else {
            copy_rows(target, map, barrier, begin * 8, chunk, pass_through);
          }
        }
        place += static_cast<uint32_t>(stage_bytes);
        barrier += 8;
        if (++stage == stages) {
          stage = 0;
          phase ^= 1;
          place = shared_address(memory);
          barrier = shared_address(&full[0]);
        }
      }
    }
  }
  if (warp < 8) cuda::wait_for_previous();

  const auto put = [&](int row, int output, float value, float up, float before) {
    if (row >= work.m || output >= work.n) return;
    value += cuda::bias_of(work.bias, work.bias_type, output);
    if constexpr (gated) {
      up += cuda::bias_of(work.bias, work.bias_type, int64_t{work.n} + output);
      value = value / (1.0f + __expf(-value)) * up;
    }
    out[row * work.out_stride + output] = cuda::from_float<Out>(value + before);
  };
  // What the product is added to.
  const auto there = [&](int row, int output) {
    return work.accumulate && row < work.m && output < work.n
               ? cuda::to_float(out[row * work.out_stride + output])
               : 0.0f;
  };

  if (warp < 8) {
    const int half = warp / 4, quarter = warp % 4;
    float sum[2][MostM / 2];
    int stage = 0;
    uint32_t phase = 0;
    for (int pass = 0; pass < passes; ++pass) {
      const int begin = begin_of(pass), units = (begin_of(pass + 1) - begin) * parts;
      // Tiles take turns: the first warpgroup has the first and the third.
      const int tiles = units > (half + 2) * 8 ? 2 : units > half * 8 ? 1 : 0;
#pragma unroll
      for (int t = 0; t < 2; ++t) {
#pragma unroll
        for (int i = 0; i < MostM / 2; ++i) sum[t][i] = 0;
      }
      const auto run = [&]<int Tiles>(std::integral_constant<int, Tiles>) {
        int before = -1;  // a stage whose products may be under way
        const auto release = [&] {
          if (before >= 0 && lane == 0) barrier_arrive(&empty[before]);
        };
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
          barrier_wait<false>(&full[stage], phase);
          const char* rows = memory + stage * stage_bytes;
          uint64_t b = tile_descriptor(rows, 0);
          uint64_t a = tile_descriptor(rows + work.deep * a_bytes + half * 8 * few_unit_bytes, 0);
          if constexpr (Tiles > 0) {
            mma_fence();
#pragma unroll 1
            for (int chunk = 0; chunk < work.deep; ++chunk) {
#pragma unroll
              for (int t = 0; t < Tiles; ++t) {
#pragma unroll
                for (int i = 0; i < few_chunk / 16; ++i) {
                  multiply(sum[t],
                           a + static_cast<uint64_t>((t * 16 * few_unit_bytes >> 4) + i * 2),
                           b + static_cast<uint64_t>(i * 2));
                }
              }
              a += static_cast<uint64_t>(units * few_unit_bytes >> 4);
              b += static_cast<uint64_t>(a_bytes >> 4);
            }
            mma_commit();
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
          }
          release();
          before = stage;
          if (++stage == stages) {
            stage = 0;
            phase ^= 1;
          }
        }
        if constexpr (Tiles > 0) {
          asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
          for (int t = 0; t < Tiles; ++t) hold(sum[t]);
        }
        release();
      };
      if (tiles == 2) {
        run(std::integral_constant<int, 2>());
      } else if (tiles == 1) {
        run(std::integral_constant<int, 1>());
      } else {
        run(std::integral_constant<int, 0>());
      }
      if (work.split > 1) break;  // there is one pass only
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        if (t >= tiles) continue;
        const int from = (half + 2 * t) * 64 + quarter * 16;  // the warp's first row of the pass
#pragma unroll
        for (int column = 0; column < MostM / 8; ++column) {
#pragma unroll
          for (int j = 0; j < (gated ? 2 : 4); ++j) {
            const int own = gated ? from / 2 + lane / 4 : from + lane / 4 + j / 2 * 8;
            if (own >= units / parts * 8) continue;
            const int row = column * 8 + lane % 4 * 2 + j % 2, output = begin * 8 + own;
            put(row, output, sum[t][column * 4 + j], gated ? sum[t][column * 4 + j + 2] : 0.0f,
                there(row, output));
          }
        }
      }
    }
    if (!gated && work.split > 1) {
      // The ring is empty now: all that was asked for has been multiplied.
      named_sync(1, 256);
      auto* sums = reinterpret_cast<float*>(memory);
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        const int from = (half + 2 * t) * 64 + quarter * 16;
        if (from >= (work.groups + 1) * 8) continue;
#pragma unroll
        for (int column = 0; column < MostM / 8; ++column) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            sums[(from + lane / 4 + j / 2 * 8) * pitch + column * 8 + lane % 4 * 2 + j % 2] =
                sum[t][column * 4 + j];
          }
        }
      }
    }
  }
  if (gated || work.split == 1) return;
  __syncwarp();
  // A warp takes eight outputs of four rows of a at a time.
  const int first = begin_of(0), groups = begin_of(1) - first;
  const int items = warp < 8 ? groups * ((work.m + 3) / 4) : 0;
  int item = rank * 8 + warp;
  const auto row_of = [&] { return item / groups * 4 + lane / 8; };
  const auto own_of = [&] { return item % groups * 8 + lane % 8; };
  float before = item < items ? there(row_of(), first * 8 + own_of()) : 0.0f;
  meet_cluster();
  while (item < items) {
    const int row = row_of(), own = own_of();
    const uint32_t at = shared_address(memory) + static_cast<uint32_t>(own * pitch + row) * 4;
    float all = 0;
    if (work.split == 2) {
      const float other = load_from(at, 1);
      all = load_from(at, 0) + other;
    } else {
#pragma unroll 4
      for (int r = 0; r < work.split; ++r) all += load_from(at, r);
    }
    put(row, first * 8 + own, all, 0.0f, before);
    item += work.split * 8;
    if (item < items) before = there(row_of(), first * 8 + own_of());
  }
  __syncwarp();
  meet_cluster();  // nobody leaves while its sums are being read
#endif
}

}  // namespace kinora::hopper
