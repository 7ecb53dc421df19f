// One row times a matrix: reading the weights once is all the work, so the kernel is a stream of
// them that never stops. Every multiprocessor takes an equal share of the rows of the weights and
// its warps equal shares of that, to pieces of 256 columns; a warp always has some of them on
// their way. The first are asked for before the kernel that makes the row has ended, and the block
// leaves room for the next kernel to do the same.
#include "ops/matmul_cuda.h"
#include "ops/matmul_parts_cuda.cuh"

namespace kinora::cuda {
namespace {

constexpr int warps = 16;
constexpr int threads = 32 * warps;
constexpr int piece_columns = 32 * 8;
constexpr size_t most_shared_bytes = 111 * 1024;  // two blocks of neighbouring kernels on one SM
constexpr int ring = 8;                           // pieces of a warp on their way or in use

struct StreamShape {
  const __nv_bfloat16* a;  // [k]
  const __nv_bfloat16* weight;
  const void* bias;  // of the type `bias_type`; null: none
  DType bias_type;
  bool accumulate;
  int n, k;
  int64_t weight_stride;
  // The row before its RMS norm, in the place of `a`.
  const float* unnormed;
  const __nv_bfloat16* norm;
  float epsilon;
};

// Sixteen bytes that pass through once, or zeros. A warp asks for whole lines, so there is nothing
// to fetch beyond them: a hint to the second-level cache to do so costs bandwidth.
__device__ __forceinline__ void copy_once(uint4* target, const __nv_bfloat16* source, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(target))),
               "l"(source), "r"(inside ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void add_products(float (&sum)[2], uint32_t a, uint32_t b) {
  sum[0] = fmaf(__uint_as_float(a << 16), __uint_as_float(b << 16), sum[0]);
  sum[1] = fmaf(__uint_as_float(a & 0xffff0000u), __uint_as_float(b & 0xffff0000u), sum[1]);
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  uint32_t raw;
  memcpy(&raw, &both, sizeof(raw));
  return raw;
}

// Eight columns of the norm's weights, which a thread has before it waits for the row.
template <bool normed>
__device__ __forceinline__ uint4 first_scale(const StreamShape& shape) {
  const auto thread = static_cast<int>(threadIdx.x);
  if (!normed || thread >= shape.k / 8) return make_uint4(0, 0, 0, 0);
  return __ldg(reinterpret_cast<const uint4*>(shape.norm) + thread);
}

// x ← the row, bf16, followed by zeros up to a whole piece.
template <bool normed>
__device__ __forceinline__ void bring_row(const StreamShape& shape, const uint4& scale_of_first,
                                          uint4* x, float* scratch) {
  const int eights = shape.k / 8, all = (shape.k + piece_columns - 1) / piece_columns * 32;
  const auto thread = static_cast<int>(threadIdx.x);
  if constexpr (!normed) {
    const auto* from = reinterpret_cast<const uint4*>(shape.a);
#pragma unroll 4
    for (int i = thread; i < all; i += threads) {
      x[i] = i < eights ? __ldcg(from + i) : make_uint4(0, 0, 0, 0);
    }
  } else {
    const auto* from = reinterpret_cast<const float4*>(shape.unnormed);
    const auto* norm = reinterpret_cast<const uint4*>(shape.norm);
    float4 low{}, high{};  // of the thread's first eight columns
    if (thread < eights) {
      low = __ldcg(from + 2 * thread);
      high = __ldcg(from + 2 * thread + 1);
    }
    const auto squares_of = [](const float4& four) {
      return four.x * four.x + four.y * four.y + four.z * four.z + four.w * four.w;
    };
    float squares = squares_of(low) + squares_of(high);
#pragma unroll 1
    for (int i = thread + threads; i < eights; i += threads) {
      squares += squares_of(__ldcg(from + 2 * i)) + squares_of(__ldcg(from + 2 * i + 1));
    }
    squares = block_sum(squares, scratch);
    const float factor = 1.0f / sqrtf(squares / static_cast<float>(shape.k) + shape.epsilon);
    uint4 scale = scale_of_first;
#pragma unroll 1
    for (int i = thread; i < all; i += threads) {
      uint4 eight = make_uint4(0, 0, 0, 0);
      if (i < eights) {
        if (i != thread) {
          low = __ldcg(from + 2 * i);
          high = __ldcg(from + 2 * i + 1);
          scale = __ldg(norm + i);
        }
        const auto scaled = [&](float first, float second, uint32_t by) {
          return pack(first * factor * __uint_as_float(by << 16),
                      second * factor * __uint_as_float(by & 0xffff0000u));
        };
        eight = make_uint4(scaled(low.x, low.y, scale.x), scaled(low.z, low.w, scale.y),
                           scaled(high.x, high.y, scale.z), scaled(high.z, high.w, scale.w));
      }
      x[i] = eight;
    }
  }
}

// gated: rows i and i + n of the weights make one output; they follow each other in the stream.
// Every thread copies its own 16 bytes of a piece to shared memory and reads only these, so the
// warps never wait for each other.
template <bool gated, bool normed, typename Out>
__global__ void __launch_bounds__(threads, 2) stream_kernel(StreamShape shape, Out* out) {
  constexpr int parts = gated ? 2 : 1;
  extern __shared__ uint4 memory[];  // [ring, threads], the row, the sums of the block's rows
  __shared__ float scratch[32];
  // A row that several warps share: the one that has its begin writes to `sums`, the others here.
  __shared__ float later[warps];
  __shared__ int later_row[warps];
  let_next_start();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto block = static_cast<int64_t>(blockIdx.x), blocks = static_cast<int64_t>(gridDim.x);
  const auto first = static_cast<int>(shape.n * block / blocks);
  const int count = static_cast<int>(shape.n * (block + 1) / blocks) - first;
  const int row_pieces = (shape.k + piece_columns - 1) / piece_columns;
  uint4* slots = memory + threadIdx.x;
  uint4* x = memory + ring * threads;
  auto* sums = reinterpret_cast<float*>(x + row_pieces * 32);  // [count × parts]
  const int total = count * parts * row_pieces;
  const auto begin = static_cast<int>(int64_t{total} * warp / warps);
  const auto end = static_cast<int>(int64_t{total} * (warp + 1) / warps);

  const auto row_start = [&](int row) {
    const int64_t at = gated ? int64_t{row % 2} * shape.n + first + row / 2 : int64_t{first} + row;
    return shape.weight + at * shape.weight_stride;
  };
  // The next piece to ask for.
  int next_piece = begin % row_pieces, next_row = begin / row_pieces;
  const __nv_bfloat16* next = row_start(next_row) + next_piece * piece_columns + lane * 8;
  int wanted = end - begin;
  const auto ask = [&](int slot) {
    if (wanted-- > 0) {
      const bool inside = next_piece * piece_columns + lane * 8 < shape.k;
      copy_once(slots + slot * threads, inside ? next : shape.weight, inside);
      next += piece_columns;
      if (++next_piece == row_pieces) {
        next_piece = 0;
        next = row_start(++next_row) + lane * 8;
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
#pragma unroll 1
  for (int i = 0; i < ring - 1; ++i) ask(i);
  const uint4 scale = first_scale<normed>(shape);
  for (int part = 0; part < parts; ++part) {
    fetch_bias(shape.bias, shape.bias_type, int64_t{part} * shape.n + first, count);
  }
  wait_for_previous();
  // What the thread's first sum is added to comes while the sum is made.
  const auto own = static_cast<int>(threadIdx.x);
  const float base = shape.accumulate && own < count ? to_float(out[first + own]) : 0;
  bring_row<normed>(shape, scale, x, scratch);
  __syncthreads();

  int piece = begin % row_pieces, row = begin / row_pieces;
  bool has_begin = piece == 0;
  if (lane == 0) later_row[warp] = has_begin || begin == end ? -1 : row;
  float sum[2] = {};
  const auto finish_row = [&] {
    const float whole = warp_sum(sum[0] + sum[1]);
    if (lane == 0) (has_begin ? sums[row] : later[warp]) = whole;
    sum[0] = sum[1] = 0;
    has_begin = true;
    piece = 0;
    ++row;
  };
  int slot = 0;
#pragma unroll 2
  for (int at = begin; at < end; ++at) {
    asm volatile("cp.async.wait_group %0;" ::"n"(ring - 2) : "memory");
    const uint4 left = slots[slot * threads], right = x[piece * 32 + lane];
    ask((slot + ring - 1) % ring);  // what was read there is in use already
    slot = (slot + 1) % ring;
    add_products(sum, left.x, right.x);
    add_products(sum, left.y, right.y);
    add_products(sum, left.z, right.z);
    add_products(sum, left.w, right.w);
    if (++piece == row_pieces) finish_row();
  }
  if (piece != 0 && begin != end) finish_row();
  __syncthreads();
  for (int i = own; i < count; i += threads) {
    float whole[parts];
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      const int virtual_row = i * parts + part;
      whole[part] = sums[virtual_row];
#pragma unroll 3
      for (int w = 1; w < warps; ++w) whole[part] += later_row[w] == virtual_row ? later[w] : 0.0f;
      whole[part] += bias_of(shape.bias, shape.bias_type, int64_t{part} * shape.n + first + i);
    }
    float value = whole[0];
    if constexpr (gated) value = value / (1.0f + __expf(-value)) * whole[parts - 1];
    Out* target = out + first + i;
    if (shape.accumulate) value += i == own ? base : to_float(*target);
    *target = from_float<Out>(value);
  }
}

unsigned int stream_blocks(const Context& context, int64_t n) {
  return static_cast<unsigned int>(std::min<int64_t>(n, multiprocessors(context.device.index)));
}

size_t shared_bytes(int64_t n, int64_t k, unsigned int blocks, bool gated) {
  const int64_t row = (k + piece_columns - 1) / piece_columns * piece_columns * 2;
  const int64_t sums = (n / blocks + 1) * (gated ? 2 : 1) * 4;
  return static_cast<size_t>(ring * threads * 16 + row + sums);
}

size_t shared_limit(const Context& context) {
  return std::min(most_shared_bytes, most_shared_memory(context));
}

// What all roads here want of a product.
bool fits(const Context& context, const MatmulWork& work, bool gated) {
  const int64_t n = work.out.size(1), k = work.a.size(1);
  return work.out.size(0) == 1 && n > 0 && n < INT32_MAX / 2 && k > 0 && k < INT32_MAX / 2 &&
         k % 8 == 0 && work.weight.dtype() == DType::bf16 && work.weight.stride(0) % 8 == 0 &&
         starts_at_sixteen_bytes(work.weight.raw()) && starts_at_sixteen_bytes(work.a.raw()) &&
         shared_bytes(n, k, stream_blocks(context, n), gated) <= shared_limit(context);
}

StreamShape stream_shape(const MatmulWork& work) {
  StreamShape shape{};
  shape.weight = device_data<__nv_bfloat16>(work.weight);
  shape.bias = work.bias.raw();
  shape.bias_type = work.bias.dtype();
  shape.accumulate = work.accumulate;
  shape.n = static_cast<int>(work.out.size(1));
  shape.k = static_cast<int>(work.a.size(1));
  shape.weight_stride = work.weight.stride(0);
  return shape;
}

template <bool gated, bool normed, typename Out>
void run(const Context& context, const StreamShape& shape, Out* out) {
  const unsigned int blocks = stream_blocks(context, shape.n);
  const size_t bytes = shared_bytes(shape.n, shape.k, blocks, gated);
  const auto kernel = stream_kernel<gated, normed, Out>;
  if (bytes > 40 * 1024) {
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_limit(context))),
          "preparing a product");
  }
  launch_early({blocks, threads, bytes, enter(context)}, "matmul", kernel, shape, out);
}

}  // namespace

bool matmul_stream(const Context& context, const MatmulWork& work, bool gated) {
  if (work.a.dtype() != DType::bf16 || !fits(context, work, gated)) return false;
  StreamShape shape = stream_shape(work);
  shape.a = device_data<__nv_bfloat16>(work.a);
  with_activation(work.out.dtype(), [&]<typename Out>(Out) {
    Out* out = device_data<Out>(work.out);
    gated ? run<true, false>(context, shape, out) : run<false, false>(context, shape, out);
  });
  return true;
}

bool norm_matmul(const Context& context, const MatmulWork& work, ConstTensorView norm,
                 float epsilon, bool gated) {
  if (work.out.dtype() != DType::bf16 || norm.dtype() != DType::bf16 ||
      !starts_at_sixteen_bytes(norm.raw()) || !fits(context, work, gated)) {
    return false;
  }
  StreamShape shape = stream_shape(work);
  shape.unnormed = device_data<float>(work.a);
  shape.norm = device_data<__nv_bfloat16>(norm);
  shape.epsilon = epsilon;
  auto* out = device_data<__nv_bfloat16>(work.out);
  gated ? run<true, true>(context, shape, out) : run<false, true>(context, shape, out);
  return true;
}

}  // namespace kinora::cuda
