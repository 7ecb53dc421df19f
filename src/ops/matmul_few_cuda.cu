#include "ops/few_rows_cuda.cuh"
#include "ops/matmul_cuda.h"

namespace kinora::cuda {
namespace {

// Weights in bf16 as they lie, row by row. A lane holds eight neighbouring columns of two rows,
// twice: to the tensor cores the order of columns is all the same, if both factors have it.
struct PlainSource {
  static constexpr int vectors = 4;
  static constexpr int ring = 4;
  static constexpr bool in_order = true;

  const __nv_bfloat16* weight;
  int64_t stride;
  int rows, columns;  // rows: of each half where they are paired
  int strips, pieces;
  bool paired;

  static size_t scale_bytes() { return 0; }
  static size_t zero_bytes() { return 0; }

  __device__ __forceinline__ void ask(uint4* slots, float2*, uint32_t*, int strip, int at,
                                      int lane) const {
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      const int half = v / 2, in_strip = lane / 4 + (paired ? 0 : half * 8);
      const int row = strip * (paired ? 8 : 16) + in_strip;
      const int column = at * few::strip_piece + v % 2 * 32 + lane % 4 * 8;
      const bool inside = row < rows && column < columns;
      const int64_t own = (paired ? int64_t{half} * rows : 0) + row;
      few::copy_or_clear(slots + v * few::threads, weight + (inside ? own * stride + column : 0),
                         inside);
    }
  }

  struct Piece {
    uint4 own[vectors];  // rows r and r + 8, each with two times eight columns

    __device__ __forceinline__ void put(int vector, const uint4& eight) { own[vector] = eight; }
    __device__ __forceinline__ void scale(const PlainSource&, const float2*, const uint32_t*) {}
    __device__ __forceinline__ void left(uint32_t (&registers)[4], int step) const {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4& eight = own[half * 2 + step / 2];
        registers[half] = step % 2 == 0 ? eight.x : eight.z;
        registers[half + 2] = step % 2 == 0 ? eight.y : eight.w;
      }
    }
    __device__ __forceinline__ void add(float (&sum)[4], const float (&part)[4]) const {
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[j] += part[j];
    }
  };
};

}  // namespace

bool matmul_few_rows(const Context& context, const MatmulWork& work, const RowNorm& norm,
                     bool gated, int split) {
  const ConstTensorView& weight = work.weight;
  const bool normed = norm.weight.raw() != nullptr;
  if (weight.dtype() != DType::bf16 || work.a.dtype() != (normed ? DType::f32 : DType::bf16) ||
      weight.size(1) % 8 != 0 || weight.stride(0) % 8 != 0 ||
      !few::starts_at_sixteen_bytes(weight.raw()) || (normed && !few::norm_fits(work, norm))) {
    return false;
  }
  const int64_t rows = gated ? weight.size(0) / 2 : weight.size(0), in_strip = gated ? 8 : 16;
  PlainSource source{device_data<__nv_bfloat16>(weight),
                     weight.stride(0),
                     static_cast<int>(rows),
                     static_cast<int>(weight.size(1)),
                     static_cast<int>((rows + in_strip - 1) / in_strip),
                     static_cast<int>((weight.size(1) + few::strip_piece - 1) / few::strip_piece),
                     gated};
  if (work.out.size(0) == 0 || source.strips == 0 || source.pieces == 0) return false;
  few::run_passes(context, work, source, norm, split);
  return true;
}

}  // namespace kinora::cuda
