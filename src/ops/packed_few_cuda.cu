#include "ops/few_rows_cuda.cuh"
#include "ops/packed_codes_cuda.cuh"
#include "ops/packed_cuda.h"

namespace kinora::cuda {
namespace {

// Weights in 4 or 8 bits.
template <PackedKind kind>
struct PackedSource : StripCodes {
  static constexpr int vectors = lane_vectors<kind>;
  static constexpr int ring = kind == PackedKind::int4 ? 8 : 5;
  static constexpr bool in_order = false;

  explicit PackedSource(const StripCodes& from) : StripCodes(from) {}
  static size_t scale_bytes() { return sizeof(float2); }
  size_t zero_bytes() const { return zeros != nullptr ? sizeof(uint32_t) : 0; }

  __device__ __forceinline__ void ask(uint4* slots, float2* scale_slot, uint32_t* zero_slot,
                                      int strip, int at, int lane) const {
    const uint4* from = piece_of<kind>(strip, at) + lane;
#pragma unroll
    for (int v = 0; v < vectors; ++v) few::copy_own<16>(slots + v * few::threads, from + v * 32);
    const int64_t part = scale_of(strip, at, lane);
    few::copy_own<8>(scale_slot, scales + part);
    if (zeros != nullptr) few::copy_own<4>(zero_slot, zeros + part);
  }

  struct Piece : LanePiece<kind> {
    float2 scales;
    uint32_t zeros;

    __device__ __forceinline__ void scale(const PackedSource& weight, const float2* scale_slot,
                                          const uint32_t* zero_slot) {
      scales = *scale_slot;
      zeros = weight.zeros != nullptr ? *zero_slot : weight.zero;
    }
    __device__ __forceinline__ void left(uint32_t (&registers)[4], int step) const {
      this->widen(registers, step, zeros);
    }
    __device__ __forceinline__ void add(float (&sum)[4], const float (&part)[4]) const {
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[j] = fmaf(j < 2 ? scales.x : scales.y, part[j], sum[j]);
    }
  };
};

}  // namespace

bool packed_norm_fits(const MatmulWork& work, const RowNorm& norm) {
  return few::norm_fits(work, norm);
}

void packed_few_rows(const Context& context, const MatmulWork& work, const PackedStrips& weight,
                     const RowNorm& norm, int split) {
  with_packed_kind(weight.kind(), [&]<PackedKind kind> {
    few::run_passes(context, work, PackedSource<kind>(codes_of(weight)), norm, split);
  });
}

}  // namespace kinora::cuda
