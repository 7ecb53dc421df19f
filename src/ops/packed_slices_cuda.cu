#include "ops/packed_slices_cuda.cuh"

#include <algorithm>

#include "ops/clusters_cuda.h"
#include "ops/packed_cuda.h"

namespace kinora::cuda {
namespace slices {
namespace {

constexpr int most_split = 8;  // blocks of a cluster that every card with clusters takes

// Every warp of every block makes f16 of its columns of the rows, which takes too long for more.
template <PackedKind kind>
constexpr int rows_at_once = Source<kind>::in_bf16 ? most_rows : 2;

int parts(int all, int each) { return (all + each - 1) / each; }
size_t round_up(size_t bytes) { return (bytes + 127) / 128 * 128; }

// What a block may use; a little is left for what the kernel declares itself.
size_t shared_limit(const Context& context) { return most_shared_memory(context) - 1024; }

// How the work is divided.
struct Division {
  int warps, clusters;  // warps: those with weights
  size_t bytes;         // of shared memory
};

// Sets what of the shape depends on how the work is divided.
template <PackedKind kind>
Division divide(const Source<kind>& weight, Shape& shape, int at_once, int split) {
  const int units = parts(weight.pieces, split);
  // Warps in which few wait for those with one unit more; fewer than eight leave a part of a
  // multiprocessor with less to do.
  const auto idle = [&](int warps) { return parts(units, warps) * std::max(warps, 8); };
  int warps = 1;
  for (int more = 2; more <= std::min(most_warps, weight.pieces / split); ++more) {
    if (idle(more) < idle(warps)) warps = more;
  }
  const int clusters = std::min(at_once, weight.strips);
  size_t at = 0;
  const auto take = [&](size_t bytes) {
    const size_t from = at;
    at += round_up(bytes);
    return static_cast<uint32_t>(from);
  };
  const auto count = [](int value) { return static_cast<size_t>(value); };
  shape.split = split;
  shape.most_owned = parts(parts(weight.strips, clusters), split);
  shape.affine_bytes = scale_bytes + (weight.zeros != nullptr ? zero_bytes : 0);
  shape.row_stride = static_cast<uint32_t>(units * Source<kind>::row_bytes);
  shape.ring_bytes = static_cast<uint32_t>(depth * together) * (unit_bytes + shape.affine_bytes);
  take(count(shape.m) * shape.row_stride);
  shape.factors = take(Source<kind>::in_bf16 ? 0 : count(units * most_rows) * sizeof(float));
  shape.squares = take(shape.unnormed != nullptr ? count(units * most_rows) * sizeof(float) : 0);
  shape.rings = take(count(warps) * shape.ring_bytes);
  shape.partial = take(count(together * warps * sum_bytes));
  // Sums of strips, then those of squares.
  shape.inbox = take(split > 1 ? count(split * (shape.most_owned * sum_bytes + 64)) : 0);
  return {warps, clusters, at};
}

// As few blocks for a strip as hold the rows, or twice as many where that leaves fewer of them
// idle. False: not even a cluster holds them.
template <PackedKind kind>
bool choose(const Context& context, const Source<kind>& weight, Shape& shape, int wanted,
            Division& division) {
  const auto at_once = [&](int split) {
    return clusters_at_once(context, reinterpret_cast<const void*>(slices_kernel<kind>), split,
                            (most_warps + 1) * 32, shared_limit(context));
  };
  const auto busy = [&](int split) {
    const int clusters = std::min(at_once(split), weight.strips);
    return static_cast<float>(weight.strips) /
           static_cast<float>(clusters * parts(weight.strips, clusters));
  };
  int split = wanted > 0 ? wanted : busy(2) > 1.1f * busy(1) ? 2 : 1;
  for (; split <= std::min(most_split, weight.pieces); split *= 2) {
    division = divide<kind>(weight, shape, at_once(split), split);
    if (division.bytes <= shared_limit(context)) return true;
  }
  return false;
}

template <PackedKind kind>
bool run(const Context& context, const Source<kind>& weight, Shape shape, int split) {
  const auto kernel = slices_kernel<kind>;
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_limit(context))),
        "preparing a product");
  Division division{};
  if (!choose<kind>(context, weight, shape, split, division)) return false;
  launch_early({static_cast<unsigned int>(division.clusters * shape.split),
                static_cast<unsigned int>((division.warps + 1) * 32), division.bytes,
                enter(context), static_cast<unsigned int>(shape.split)},
               "matmul", kernel, weight, shape);
  return true;
}

// The rows are read eight columns at a time.
bool rows_fit(const MatmulWork& work, const RowNorm& norm) {
  if (work.a.size(1) % 8 != 0 || !starts_at_sixteen_bytes(work.a.raw())) return false;
  if (norm.weight.raw() == nullptr) return work.a.stride(0) % 8 == 0;
  return norm.weight.dtype() == DType::bf16 && starts_at_sixteen_bytes(norm.weight.raw()) &&
         work.a.stride(0) % 4 == 0;
}

}  // namespace
}  // namespace slices

bool packed_slices(const Context& context, const MatmulWork& work, const PackedStrips& weight,
                   const RowNorm& norm, int split) {
  using namespace slices;
  const StripCodes codes = codes_of(weight);
  const int64_t m = work.out.size(0);
  const bool pairs = weight.kind() == PackedKind::int4;  // of pieces
  if (!has_clusters(context) || !rows_fit(work, norm) || weight.bytes() > UINT32_MAX ||
      (pairs && codes.group_pieces % 2 != 0)) {
    return false;
  }
  Shape shape{};
  if (norm.weight.raw() == nullptr) {
    shape.a = device_data<__nv_bfloat16>(work.a);
  } else {
    shape.unnormed = device_data<float>(work.a);
    shape.norm = device_data<__nv_bfloat16>(norm.weight);
    shape.epsilon = norm.epsilon;
  }
  shape.a_stride = work.a.stride(0);
  shape.m = static_cast<int>(m);
  shape.n = static_cast<int>(work.out.size(1));
  shape.k = static_cast<int>(work.a.size(1));
  shape.bias = work.bias.raw();
  shape.bias_type = work.bias.dtype();
  shape.accumulate = work.accumulate;
  shape.out = work.out.raw();
  shape.out_type = work.out.dtype();
  shape.out_stride = work.out.stride(0);
  bool done = false;
  with_packed_kind(weight.kind(), [&]<PackedKind kind> {
    if (m <= rows_at_once<kind>) done = run<kind>(context, Source<kind>(codes), shape, split);
  });
  return done;
}

}  // namespace kinora::cuda
