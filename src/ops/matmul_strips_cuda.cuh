// Products of 2 to 48 rows with matrices of very many outputs (gate and up, the head), where
// reading the weights is nearly all the work and the rows of a are too many to be read again and
// again. Every multiprocessor has one block, which takes an equal share of the outputs; a warp of
// it has one or two strips of sixteen rows of the weights and takes them through a ring of its own
// in shared memory, 128 columns at a time, so that warps never wait for each other's weights. Two
// warps bring the rows of a for all, a few steps ahead. Sums stay in registers until the end.
//
// A copy instruction of a warp takes 256 bytes of two rows: with 128 bytes the memory of an H200
// gives a tenth less, with 64 bytes half.
#pragma once

#include "ops/hopper_instructions.cuh"
#include "ops/matmul_parts_cuda.cuh"

namespace kinora::cuda::strips {

constexpr int chunk = 128;                 // columns of a step
constexpr int row_bytes = chunk * 2;       // of a step
constexpr int half_bytes = 8 * row_bytes;  // eight rows of the weights
constexpr int halves = 9;                  // of a warp's ring: two in use, the others on their way
constexpr int ring_bytes = halves * half_bytes;
constexpr int buffers = 3;  // of rows of a
constexpr int most_warps = 10, row_warps = 2;

struct StripsShape {
  const __nv_bfloat16* a;
  const __nv_bfloat16* weight;
  const void* bias;  // of the type `bias_type`; null: none
  DType bias_type;
  bool accumulate;
  int m;
  int passes;  // in which a block takes its outputs
  int n, chunks;
  // Of all passes of all blocks: outputs of each, and how many have one more. Quotients come from
  // the host, since a division takes tens of instructions in every place.
  int each, more;
  float of_warps;  // 1 / warps with weights
  int64_t a_stride, weight_stride, out_stride;
};

// Sixteen bytes that pass through once.
__device__ __forceinline__ void copy_sixteen(uint32_t target, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}

// Where sixteen bytes of a row lie: eight rows of one place meet eight banks.
__device__ __forceinline__ uint32_t place(int row, int sixteen) {
  return static_cast<uint32_t>(row * row_bytes + ((sixteen ^ (row & 7)) << 4));
}

// The outputs of a block in a pass, and of one of its warps.
struct Outputs {
  int first, count;
};
__device__ __forceinline__ Outputs of_block(const StripsShape& shape, int pass) {
  const int part = static_cast<int>(blockIdx.x) * shape.passes + pass;
  return {shape.each * part + min(part, shape.more), shape.each + (part < shape.more ? 1 : 0)};
}
__device__ __forceinline__ Outputs of_warp(const StripsShape& shape, const Outputs& block,
                                           int warp) {
  const auto begin = [&](int of) {  // ⌊count · of / warps⌋
    return static_cast<int>((static_cast<float>(block.count * of) + 0.5f) * shape.of_warps);
  };
  const int first = begin(warp);
  return {block.first + first, begin(warp + 1) - first};
}

// Asks for the strips of a warp, eight rows of a step at a time. gated: the first eight rows of a
// strip are those of gate, the others the same rows of up.
template <int Strips, bool gated>
class Asking {
 public:
  __device__ __forceinline__ Asking(const StripsShape& shape, uint32_t ring, int warp)
      : shape_(shape),
        warp_(warp),
        sub_(static_cast<int>(threadIdx.x) % 32 / 16),
        sixteen_(static_cast<int>(threadIdx.x) % 16),
        ring_(ring) {}

  __device__ __forceinline__ void next_half() {
    if (left_ == 0 && pass_ + 1 < shape_.passes) open_pass();
    if (left_ > 0) {
      --left_;
      const int64_t first =
          gated ? strip_ * 8 + int64_t{half_} * shape_.n : strip_ * 16 + half_ * 8;
      const __nv_bfloat16* from = column_ + first * shape_.weight_stride;
      const int output = (gated ? strip_ * 8 : strip_ * 16 + half_ * 8) + sub_;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (output + 2 * i < outputs_) {
          copy_sixteen(ring_ + slot_ * half_bytes + place(2 * i + sub_, sixteen_), from);
        }
        from += 2 * shape_.weight_stride;
      }
      if (++half_ == 2) {
        half_ = 0;
        if (++strip_ == Strips) {
          strip_ = 0;
          column_ += chunk;
        }
      }
      if (++slot_ == halves) slot_ = 0;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

 private:
  __device__ __forceinline__ void open_pass() {
    const Outputs own = of_warp(shape_, of_block(shape_, ++pass_), warp_);
    outputs_ = own.count;
    column_ = shape_.weight + (int64_t{own.first} + sub_) * shape_.weight_stride + sixteen_ * 8;
    left_ = shape_.chunks * Strips * 2;
  }

  const StripsShape& shape_;
  const int warp_, sub_, sixteen_;
  const uint32_t ring_;
  const __nv_bfloat16* column_ = nullptr;
  int outputs_ = 0, pass_ = -1, left_ = 0, half_ = 0, strip_ = 0;
  uint32_t slot_ = 0;
};

// Width: rows of a, a multiple of sixteen.
template <int Width, int Strips, bool gated, typename Out>
__global__ void __launch_bounds__((most_warps + row_warps) * 32, 1)
    strips_kernel(const __grid_constant__ StripsShape shape, Out* out) {
#if __CUDA_ARCH__ >= 900
  constexpr uint32_t buffer_bytes = Width * row_bytes;
  extern __shared__ __align__(128) char memory[];  // the rings of the warps, then rows of a
  __shared__ uint64_t full[buffers], empty[buffers];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int warps = static_cast<int>(blockDim.x) / 32 - row_warps;
  const uint32_t rows = hopper::shared_address(memory) + static_cast<uint32_t>(warps * ring_bytes);
  if (thread == 0) {
    for (int i = 0; i < buffers; ++i) {
      hopper::barrier_init(&full[i], row_warps * 32);
      hopper::barrier_init(&empty[i], static_cast<uint32_t>(warps));
    }
    hopper::barrier_init_visible();
  }
  __syncthreads();
  let_next_start();

  int buffer = 0;
  uint32_t phase = 0;
  const auto next_buffer = [&] {
    if (++buffer < buffers) return;
    buffer = 0;
    phase ^= 1;
  };
  if (warp >= warps) {
    wait_for_previous();
    int column = 0;  // chunk
#pragma unroll 1
    for (int step = 0; step < shape.passes * shape.chunks; ++step) {
      if (step >= buffers) hopper::barrier_wait<false>(&empty[buffer], phase ^ 1);
      const __nv_bfloat16* from = shape.a + int64_t{column} * chunk + lane % 16 * 8;
      if (++column == shape.chunks) column = 0;
      const uint32_t to = rows + static_cast<uint32_t>(buffer) * buffer_bytes;
#pragma unroll 4
      for (int row = (warp - warps) * 2 + lane / 16; row < shape.m; row += 2 * row_warps) {
        copy_sixteen(to + place(row, lane % 16), from + row * shape.a_stride);
      }
      hopper::arrive_when_copied(&full[buffer]);
      next_buffer();
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    return;
  }

  const uint32_t ring = hopper::shared_address(memory) + static_cast<uint32_t>(warp * ring_bytes);
  Asking<Strips, gated> asking(shape, ring, warp);
#pragma unroll 1
  for (int i = 0; i < halves; ++i) asking.next_half();
  const int weight_row = lane % 16;
  int first_half = 0;  // of the strip's two, in the ring
#pragma unroll 1
  for (int pass = 0; pass < shape.passes; ++pass) {
    float sum[Strips][Width / 8][4] = {};
#pragma unroll 1
    for (int step = 0; step < shape.chunks; ++step) {
      hopper::barrier_wait<false>(&full[buffer], phase);
      const uint32_t a = rows + static_cast<uint32_t>(buffer) * buffer_bytes;
#pragma unroll
      for (int strip = 0; strip < Strips; ++strip) {
        asm volatile("cp.async.wait_group %0;" ::"n"(halves - 2) : "memory");
        __syncwarp();
        int half = first_half + weight_row / 8;
        if (half >= halves) half -= halves;
        const uint32_t weights = ring + static_cast<uint32_t>(half * half_bytes);
#pragma unroll
        for (int i = 0; i < chunk / 16; ++i) {
          uint32_t left[4];
          load_four(left, weights + place(weight_row % 8, 2 * i + lane / 16));
#pragma unroll
          for (int t = 0; t < Width / 16; ++t) {
            uint32_t right[4];
            load_four(right, a + place(t * 16 + lane / 16 * 8 + lane % 8, 2 * i + lane / 8 % 2));
            multiply(sum[strip][2 * t], left, right[0], right[1]);
            multiply(sum[strip][2 * t + 1], left, right[2], right[3]);
          }
        }
        __syncwarp();  // all have read what comes in next
        first_half = first_half + 2 < halves ? first_half + 2 : first_half + 2 - halves;
        asking.next_half();
        asking.next_half();
      }
      if (lane == 0) hopper::barrier_arrive(&empty[buffer]);
      next_buffer();
    }
    if (pass == 0) wait_for_previous();  // who reads `out` may still run
    const Outputs own = of_warp(shape, of_block(shape, pass), warp);
    // This runs once, so what counts is how few instructions there are to fetch: a lane has two
    // outputs of a strip, or one of gate and of up, for two rows of every eight.
#pragma unroll
    for (int strip = 0; strip < Strips; ++strip) {
#pragma unroll
      for (int half = 0; half < (gated ? 1 : 2); ++half) {
        const int output = lane / 4 + (gated ? strip * 8 : strip * 16 + half * 8);
        if (output >= own.count) continue;
        const int64_t column = int64_t{own.first} + output;
        const float bias = bias_of(shape.bias, shape.bias_type, column);
        const float up_bias = gated ? bias_of(shape.bias, shape.bias_type, shape.n + column) : 0;
        Out* target = out + lane % 4 * 2 * shape.out_stride + column;
#pragma unroll
        for (int t = 0; t < Width / 8; ++t) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            float value = sum[strip][t][half * 2 + j] + bias;
            if constexpr (gated) {
              value = __fdividef(value, 1.0f + __expf(-value)) * (sum[strip][t][2 + j] + up_bias);
            }
            if (t * 8 + lane % 4 * 2 + j < shape.m) {
              if (shape.accumulate) value += to_float(target[j * shape.out_stride]);
              target[j * shape.out_stride] = from_float<Out>(value);
            }
          }
          target += 8 * shape.out_stride;
        }
      }
    }
  }
#endif
}

}  // namespace kinora::cuda::strips
