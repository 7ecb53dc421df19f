// Products with packed weights: few rows read the packed bytes, for many rows the weights are
// widened to bf16, some strips at a time, and multiplied as any others.
#include "ops/packed_cuda.h"

#include <algorithm>

#include "ops/matmul_cuda.h"
#include "ops/packed_codes_cuda.cuh"

namespace kinora::cuda {
namespace {

constexpr int warps = 8;
constexpr int threads = 32 * warps;

struct WidenShape {
  StripCodes packed;
  int first;          // strip
  int second;         // the row of out where the second rows of pairs begin
  int columns, rows;  // of out; rows: those of each half where strips are paired
  int64_t stride;
};

// A warp takes a piece: its numbers go through shared memory, so that rows are written whole.
template <PackedKind kind>
__global__ void widen_kernel(WidenShape shape, __nv_bfloat16* out) {
  constexpr int vectors = lane_vectors<kind>;
  constexpr int row_words = strip_piece / 2 + 4;  // rows start in other banks
  __shared__ uint32_t tile[warps][16][row_words];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int at = static_cast<int>(blockIdx.x) * warps + warp;
  const int strip = shape.first + static_cast<int>(blockIdx.y);
  if (at >= shape.packed.pieces) return;
  const uint4* from = shape.packed.piece_of<kind>(strip, at) + lane;
  uint32_t words[4 * vectors];
  read_piece<kind>(words, from);
  const int64_t part = shape.packed.scale_of(strip, at, lane);
  const float2 scale = __ldg(shape.packed.scales + part);
  const uint32_t zeros =
      shape.packed.zeros != nullptr ? __ldg(shape.packed.zeros + part) : shape.packed.zero;
#pragma unroll
  for (int step = 0; step < piece_steps; ++step) {
    uint32_t left[4];
    widen_codes<kind>(left, words + step * vectors, zeros);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float by = i % 2 == 0 ? scale.x : scale.y;
      const float low = __uint_as_float(left[i] << 16) * by;
      const float high = __uint_as_float(left[i] & 0xffff0000u) * by;
      tile[warp][lane / 4 + i % 2 * 8][step * 8 + i / 2 * 4 + lane % 4] =
          raw_of(__floats2bfloat162_rn(low, high));
    }
  }
  __syncwarp();
  const int column = at * strip_piece + lane * 2;
#pragma unroll 4
  for (int row = 0; row < 16; ++row) {
    const int half = shape.packed.paired ? row / 8 : 0;
    const int in_half = static_cast<int>(blockIdx.y) * (shape.packed.paired ? 8 : 16) +
                        (shape.packed.paired ? row % 8 : row);
    if (in_half >= shape.rows) continue;
    const uint32_t both = tile[warp][row][lane];
    __nv_bfloat16* to = out + (int64_t{half} * shape.second + in_half) * shape.stride + column;
    if (column < shape.columns) to[0] = __ushort_as_bfloat16(static_cast<uint16_t>(both));
    if (column + 1 < shape.columns) to[1] = __ushort_as_bfloat16(static_cast<uint16_t>(both >> 16));
  }
}

// Weights that are widened at once; products of that size are long enough.
constexpr int64_t widened_elements = int64_t{48} << 20;

// Up to here rows go over the packed bytes. A captured graph has no more of them, and cannot ask
// for the memory that the other ways need.
constexpr int64_t most_few_rows = 64;
// From here on all rows at once are faster than sixteen at a time.
constexpr int64_t least_some_rows = 17;

void by_widening(const Context& context, const MatmulWork& work, const PackedStrips& weight) {
  const int64_t m = work.a.size(0), n = work.out.size(1), k = weight.columns();
  const int64_t in_strip = weight.paired() ? 8 : 16, halves = weight.paired() ? 2 : 1;
  const int64_t at_once =
      std::min(weight.strips(),
               std::max<int64_t>(16, widened_elements / (k * PackedStrips::strip_rows) / 16 * 16));
  const int64_t padded = (k + 7) / 8 * 8;
  for (int64_t strip = 0; strip < weight.strips(); strip += at_once) {
    const int64_t strips = std::min(at_once, weight.strips() - strip);
    const int64_t column = strip * in_strip, columns = std::min(n - column, strips * in_strip);
    Tensor wide(DType::bf16, {halves * columns, padded}, context.device);
    const TensorView rows = wide.view().columns(0, k);
    widen_strips(context, weight, strip, strips, rows);
    const auto bias_at = [&](int64_t first) {
      return work.bias.raw() != nullptr ? work.bias.rows(first, columns) : work.bias;
    };
    if (!weight.paired()) {
      matmul(context,
             {work.a, rows, bias_at(column), work.out.columns(column, columns), work.accumulate});
      continue;
    }
    Tensor both(DType::bf16, {m, 2 * columns}, context.device);
    const TensorView gate = both.view().columns(0, columns),
                     up = both.view().columns(columns, columns);
    matmul(context, {work.a, rows, {}, both, false});
    if (work.bias.raw() != nullptr) {
      add_bias(context, bias_at(column), gate);
      add_bias(context, bias_at(n + column), up);
    }
    silu_mul(context, gate, up, work.out.columns(column, columns));
  }
}

}  // namespace

void widen_strips(const Context& context, const PackedStrips& weight, int64_t first, int64_t count,
                  TensorView out) {
  if (count == 0 || out.elements() == 0) return;
  WidenShape shape{};
  shape.packed = codes_of(weight);
  shape.first = static_cast<int>(first);
  shape.rows = static_cast<int>(out.size(0) / (weight.paired() ? 2 : 1));
  shape.second = shape.rows;
  shape.columns = static_cast<int>(out.size(1));
  shape.stride = out.stride(0);
  const dim3 grid(blocks_for(weight.pieces(), warps), static_cast<unsigned int>(count));
  const Launch how{grid, threads, 0, enter(context)};
  auto* to = device_data<__nv_bfloat16>(out);
  with_packed_kind(weight.kind(),
                   [&]<PackedKind kind> { launch(how, "widen", widen_kernel<kind>, shape, to); });
}

bool packed_matmul(const Context& context, const MatmulWork& work, const PackedStrips& weight,
                   const RowNorm& norm, int split) {
  const int64_t m = work.out.size(0);
  if (m == 0 || work.out.size(1) == 0) return true;
  if (packed_slices(context, work, weight, norm, split)) return true;
  if (norm.weight.raw() != nullptr && !packed_norm_fits(work, norm)) return false;
  if (m <= most_few_rows) {
    const bool some = m >= least_some_rows && norm.weight.raw() == nullptr;
    if (some && packed_some_rows(context, work, weight, split)) return true;
    if (packed_few_rows(context, work, weight, norm, split)) return true;
  }
  if (norm.weight.raw() != nullptr) return false;
  if (!packed_by_fp8(context, work, weight)) by_widening(context, work, weight);
  return true;
}

}  // namespace kinora::cuda
