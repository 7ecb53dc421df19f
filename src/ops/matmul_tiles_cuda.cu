#include "ops/matmul_tiles_cuda.cuh"

#include "ops/clusters_cuda.h"
#include "ops/matmul_cuda.h"
#include "ops/tensor_maps_cuda.h"

namespace kinora::cuda {
namespace {

using namespace tiles;

constexpr int64_t most_rows = 64;
constexpr int most_split = 8;  // blocks of a cluster that every card with clusters takes
// Of the weights, of a cluster: below, rows of a weigh as much as they.
constexpr int least_weight_rows = 96;

bool rows_take_sixteen_bytes(const ConstTensorView& view) {
  return starts_at_sixteen_bytes(view.raw()) && view.stride(0) % 8 == 0;
}

int parts(int all, int each) { return (all + each - 1) / each; }

// What a block may use; a little is left for what the kernel declares itself.
size_t shared_limit(const Context& context) { return most_shared_memory(context) - 1024; }

int units_of(int64_t n) { return static_cast<int>(n / 8); }
int rows_of_units(int units, bool gated) { return units * (gated ? 16 : 8); }

// May use as much shared memory as there is.
const void* kernel_for(const Context& context, int width) {
  const void* kernel = width == 32   ? reinterpret_cast<const void*>(tiles_kernel<32>)
                       : width == 48 ? reinterpret_cast<const void*>(tiles_kernel<48>)
                                     : reinterpret_cast<const void*>(tiles_kernel<64>);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_limit(context))),
        "preparing a product");
  return kernel;
}
int width_for(int64_t m) { return m <= 32 ? 32 : m <= 48 ? 48 : 64; }

// How many blocks share the columns of how many units.
struct Division {
  int split, clusters, units;  // units: of a cluster, at most
};

Division divide(const Context& context, int units, bool gated, int width) {
  Division division{};
  const void* kernel = kernel_for(context, width);
  for (int split = 1; split <= most_split; split *= 2) {
    const int at_once =
        clusters_at_once(context, kernel, split, (most_tiles * 4 + 1) * 32, shared_limit(context));
    const int clusters = std::min(at_once, units);
    division = {split, clusters, parts(units, clusters)};
    if (rows_of_units(division.units, gated) >= least_weight_rows) break;
  }
  return division;
}

CUtensorMap map_of_rows(const ConstTensorView& a, int width) {
  const auto row = static_cast<cuuint64_t>(a.stride(0) * 2);
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(a.size(1)),
                               static_cast<cuuint64_t>(a.size(0)), 1, 1};
  const cuuint64_t strides[3] = {row, row, row};
  const cuuint32_t box[4] = {chunk, static_cast<cuuint32_t>(width), 1, 1};
  return hopper::describe(a.raw(), 4, sizes, strides, box);
}

// Boxes of `each` units.
CUtensorMap map_of_units(const ConstTensorView& weight, int64_t n, bool gated, int each) {
  const auto rows = [&](int64_t count) {
    return static_cast<cuuint64_t>(weight.stride(0) * 2 * count);
  };
  const cuuint32_t halves = gated ? 2 : 1;
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(weight.size(1)), 8, halves,
                               static_cast<cuuint64_t>(units_of(n))};
  const cuuint64_t strides[3] = {rows(1), rows(gated ? n : 8), rows(8)};
  const cuuint32_t box[4] = {chunk, 8, halves, static_cast<cuuint32_t>(each)};
  return hopper::describe(weight.raw(), 4, sizes, strides, box);
}

}  // namespace

bool tiles_fit(const Context& context, const MatmulWork& work, bool gated) {
  const int64_t m = work.out.size(0), n = work.out.size(1);
  return m > 1 && m <= most_rows && n > 0 && n % 8 == 0 && n < (1 << 24) && work.a.size(1) > 0 &&
         work.a.size(1) < (1 << 24) && work.a.dtype() == DType::bf16 &&
         work.weight.dtype() == DType::bf16 && rows_take_sixteen_bytes(work.a) &&
         rows_take_sixteen_bytes(work.weight) &&
         (work.out.dtype() == DType::bf16 || work.out.dtype() == DType::f32) &&
         is_hopper(context) &&
         rows_of_units(divide(context, units_of(n), gated, width_for(m)).units, gated) <=
             most_tiles * tile_rows;
}

void matmul_tiles(const Context& context, const MatmulWork& work, bool gated) {
  const int64_t m = work.out.size(0), n = work.out.size(1);
  const int width = width_for(m);
  TilesShape shape{};
  shape.units = units_of(n);
  const Division division = divide(context, shape.units, gated, width);
  shape.weight = map_of_units(work.weight, n, gated, division.units);
  shape.weight_less = map_of_units(work.weight, n, gated, std::max(1, division.units - 1));
  shape.a = map_of_rows(work.a, width);
  shape.bias = work.bias.raw();
  shape.bias_type = work.bias.dtype();
  shape.out_type = work.out.dtype();
  shape.accumulate = work.accumulate;
  shape.gated = gated;
  shape.m = static_cast<int>(m);
  shape.n = static_cast<int>(n);
  shape.chunks = parts(static_cast<int>(work.a.size(1)), chunk);
  shape.split = division.split;
  shape.most_owned = parts(width / 8, division.split);
  shape.out = work.out.raw();
  shape.out_stride = work.out.stride(0);
  shape.most_units = division.units;
  const int weight_rows = rows_of_units(division.units, gated);
  const int strips = parts(weight_rows, 16);  // of a cluster, at most
  const auto count = [](int value) { return static_cast<size_t>(value); };
  const size_t stage = count(weight_rows + width) * row_bytes;
  // The last stage's last tile reads on into what follows, where it has fewer rows than others.
  const size_t rest =
      division.split == 1
          ? tile_bytes
          : std::max(size_t{tile_bytes},
                     count(division.split * shape.most_owned * strips) * message_bytes);
  const size_t room = shared_limit(context) - tile_alignment - rest;
  shape.stages = static_cast<int>(std::min(count(most_stages), room / stage));
  shape.inbox = static_cast<uint32_t>(count(shape.stages) * stage);
  const int tile_count = parts(weight_rows, tile_rows);
  const Launch how{static_cast<unsigned int>(division.clusters * division.split),
                   static_cast<unsigned int>((tile_count * 4 + 1) * 32),
                   tile_alignment + shape.inbox + rest, enter(context),
                   static_cast<unsigned int>(division.split)};
  launch_early(how, "matmul",
               width == 32   ? tiles_kernel<32>
               : width == 48 ? tiles_kernel<48>
                             : tiles_kernel<64>,
               shape);
}

}  // namespace kinora::cuda
