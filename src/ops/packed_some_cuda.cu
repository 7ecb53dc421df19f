#include "ops/packed_some_cuda.cuh"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "ops/packed_cuda.h"

namespace kinora::cuda {
namespace some {
namespace {

constexpr int most_split = 8;
constexpr int least_strips = 7;  // of a block: with fewer it reads rows of a for too little
constexpr int most_parts = 3;

int round_up(int value, int to) { return (value + to - 1) / to; }

template <PackedKind kind, int width>
constexpr size_t bytes_for(int warps) {
  return size_t{buffers<width>} * width * row_bytes +
         static_cast<size_t>(warps) * ring<kind> * slot_bytes<kind>;
}

// Blocks of a launch; a multiple of `split`. Clusters stay within a part of the card, so that some
// multiprocessors may stay idle.
template <PackedKind kind, int width>
int blocks_at_once(const Context& context, int split) {
  const int processors = multiprocessors(context.device.index);
  if (split == 1) return processors;
  static std::mutex mutex;
  static std::map<std::pair<int, int>, int> known;  // clusters, by device and split
  const std::lock_guard lock(mutex);
  int& clusters = known[{context.device.index, split}];
  if (clusters > 0) return clusters * split;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned int>(split), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned int>(processors / split * split);
  config.blockDim = (most_warps<width> + 1) * 32;
  config.dynamicSmemBytes = bytes_for<kind, width>(most_warps<width>);
  config.attrs = &attribute;
  config.numAttrs = 1;
  check(cudaOccupancyMaxActiveClusters(&clusters, some_rows_kernel<kind, width>, &config),
        "preparing a product");
  clusters = std::max(clusters, 1);
  return clusters * split;
}

template <PackedKind kind, int width>
void run(const Context& context, const Weights<kind>& weight, Rows shape) {
  const auto kernel = some_rows_kernel<kind, width>;
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes_for<kind, width>(most_warps<width>))),
        "preparing a product");
  const int processors = multiprocessors(context.device.index);
  if (shape.split == 0) {
    shape.split = 1;
    while (shape.split < most_split && weight.strips * shape.split < least_strips * processors) {
      shape.split *= 2;
    }
  }
  int clusters = 0, each = 0;
  for (shape.split = std::min(shape.split, most_split);; shape.split /= 2) {
    clusters =
        std::min(blocks_at_once<kind, width>(context, shape.split) / shape.split, weight.strips);
    each = round_up(weight.strips, clusters);
    // Every block has columns, and one that shares them has all its strips at once.
    if (shape.split == 1 || (each <= most_warps<width> && weight.pieces >= shape.split)) break;
  }
  Division division{};
  division.passes = round_up(each, most_warps<width>);
  division.strips = round_up(each, division.passes);
  const int range = weight.pieces / shape.split;
  division.parts =
      division.passes > 1
          ? 1
          : std::max(1, std::min({most_warps<width> / division.strips, range, most_parts}));
  const int warps = division.strips * division.parts;
  const size_t sums = static_cast<size_t>(warps) * (width / few::tile_rows) * 32 * sizeof(float4);
  launch_early(
      {static_cast<unsigned int>(clusters * shape.split),
       static_cast<unsigned int>((warps + 1) * 32), std::max(bytes_for<kind, width>(warps), sums),
       enter(context), static_cast<unsigned int>(shape.split)},
      "matmul", kernel, weight, shape, division);
}

}  // namespace
}  // namespace some

bool packed_some_rows(const Context& context, const MatmulWork& work, const PackedStrips& weight,
                      int split) {
  const StripCodes codes = codes_of(weight);
  constexpr int together = some::chunk / strip_piece;
  if (work.out.size(0) > 64 || codes.pieces % together != 0 || codes.group_pieces % together != 0 ||
      work.a.size(1) % 8 != 0 || work.a.stride(0) % 8 != 0 ||
      !starts_at_sixteen_bytes(work.a.raw()) || !has_clusters(context)) {
    return false;
  }
  few::Rows shape{};
  shape.split = split;
  shape.a = device_data<__nv_bfloat16>(work.a);
  shape.a_stride = work.a.stride(0);
  shape.m = static_cast<int>(work.out.size(0));
  shape.n = static_cast<int>(work.out.size(1));
  shape.k = static_cast<int>(work.a.size(1));
  shape.bias = work.bias.raw();
  shape.bias_type = work.bias.dtype();
  shape.accumulate = work.accumulate;
  shape.out = work.out.raw();
  shape.out_type = work.out.dtype();
  shape.out_stride = work.out.stride(0);
  with_packed_kind(weight.kind(), [&]<PackedKind kind> {
    const some::Weights<kind> source(codes);
    if (shape.m <= 32) return some::run<kind, 32>(context, source, shape);
    some::run<kind, 64>(context, source, shape);
  });
  return true;
}

}  // namespace kinora::cuda
