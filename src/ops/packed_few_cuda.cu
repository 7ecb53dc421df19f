#include "ops/packed_few_cuda.cuh"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "ops/packed_cuda.h"

namespace kinora::cuda {
namespace few {
namespace {

constexpr int most_split = 8;  // blocks of a cluster that every card with clusters takes
// Of the sums of a block's strips; with more of them there are more blocks than run at once.
constexpr size_t most_sum_bytes = 48 * 1024;
constexpr int64_t usual_row_bytes = 40 * 1024;
constexpr int usual_strips = 40;  // of a block

size_t round_to(size_t bytes) { return (bytes + 127) / 128 * 128; }

template <class Weights, int tiles>
Division divide(const Weights& weight, const Rows& shape, int block_strips) {
  const auto kept = [](int count, size_t each) { return static_cast<size_t>(count) * each; };
  const int pieces = (weight.pieces + shape.split - 1) / shape.split;
  Division division{};
  division.columns = pieces * Weights::columns;
  division.rows = round_to(kept(shape.m * division.columns, sizeof(__half)));
  division.factors = round_to(kept(pieces * tiles * tile_rows, sizeof(float2)));
  division.slots = ring * threads * Weights::vectors * sizeof(uint4);
  division.affine = ring * warps * affine_bytes;
  division.later = kept(warps * tiles * 32, sizeof(float4));
  division.sums = kept(block_strips * tiles * 32, sizeof(float4));
  return division;
}

// Clusters of `split` blocks that run at once, one block a multiprocessor.
template <class Weights>
int clusters_at_once(const Context& context, int split) {
  if (split == 1) return multiprocessors(context.device.index);
  static std::mutex mutex;
  static std::map<std::pair<int, int>, int> known;  // by device and split
  const std::lock_guard lock(mutex);
  int& found = known[{context.device.index, split}];
  if (found == 0) {
    const auto kernel = few_rows_kernel<Weights, 1>;
    const size_t bytes = most_shared_memory(context) * 3 / 4;
    check(
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "preparing a product");
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned int>(split), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim =
        static_cast<unsigned int>(multiprocessors(context.device.index) / split * split);
    config.blockDim = threads;
    config.dynamicSmemBytes = bytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    check(cudaOccupancyMaxActiveClusters(&found, kernel, &config), "preparing a product");
    found = std::max(found, 1);
  }
  return found;
}

// What a kernel may use; a little is left for what it declares itself.
size_t shared_limit(const Context& context) { return most_shared_memory(context) - 1024; }

// Sets shape.division; returns the number of clusters.
template <class Weights, int tiles>
int lay_out(const Context& context, const Weights& weight, Rows& shape) {
  const int at_once = clusters_at_once<Weights>(context, shape.split);
  const int most_strips = static_cast<int>(most_sum_bytes / (tiles * 32 * sizeof(float4)));
  const int turns = (weight.strips + at_once * most_strips - 1) / (at_once * most_strips);
  const int clusters = std::min(at_once * turns, weight.strips);
  shape.division = divide<Weights, tiles>(weight, shape, (weight.strips + clusters - 1) / clusters);
  return clusters;
}

template <class Weights, int tiles>
void run_pass(const Context& context, const Weights& weight, Rows shape) {
  const int clusters = lay_out<Weights, tiles>(context, weight, shape);
  const auto kernel = few_rows_kernel<Weights, tiles>;
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_limit(context))),
        "preparing a product");
  launch_early({static_cast<unsigned int>(clusters * shape.split), threads, shape.division.all(),
                enter(context), static_cast<unsigned int>(shape.split)},
               "matmul", kernel, weight, shape);
}

// Blocks that share the columns of a strip: as few as keep the rows of a block short, since
// clusters start later and adding up takes time.
template <class Weights>
int usual_split(const Context& context, const Weights& weight, int rows) {
  if (!has_clusters(context)) return 1;
  const int processors = multiprocessors(context.device.index);
  const auto row_bytes = static_cast<int64_t>(rows) * weight.pieces * Weights::columns * 2;
  int split = 1;
  while (split < 4 && row_bytes / split > usual_row_bytes &&
         weight.strips / processors * 2 * split <= usual_strips) {
    split *= 2;
  }
  return split;
}

// Rows of one pass, no more than shape.m, that fit into shared memory; 0: not even one does. Takes
// more blocks for a strip where that helps.
template <class Weights>
int rows_that_fit(const Context& context, const Weights& weight, Rows shape, int& split) {
  // Every block has something to do.
  const int most = std::min(has_clusters(context) ? most_split : 1, weight.pieces);
  while (split > most) split /= 2;
  for (int rows = std::min(shape.m, pass_rows); rows > 0;
       rows = rows > tile_rows ? tile_rows : rows / 2) {
    shape.m = rows;
    for (shape.split = split; shape.split <= most; shape.split *= 2) {
      rows > tile_rows ? lay_out<Weights, 2>(context, weight, shape)
                       : lay_out<Weights, 1>(context, weight, shape);
      if (shape.division.all() > shared_limit(context)) continue;
      split = shape.split;
      return rows;
    }
  }
  return 0;
}

// Whether rows can be normed on the way.
bool norm_fits(const MatmulWork& work, const RowNorm& norm) {
  return work.a.size(0) <= tile_rows && norm.weight.dtype() == DType::bf16 &&
         work.a.size(1) % 8 == 0 && work.a.stride(0) % 4 == 0 &&
         starts_at_sixteen_bytes(norm.weight.raw()) && starts_at_sixteen_bytes(work.a.raw());
}

// One pass over the weights for every sixteen rows. `split` 0 is the usual one. False, with nothing
// done, where the columns are too many.
template <class Weights>
bool run_passes(const Context& context, const MatmulWork& work, const Weights& weight,
                const RowNorm& norm, int split) {
  Rows shape{};
  shape.a_stride = work.a.stride(0);
  shape.epsilon = norm.epsilon;
  shape.n = static_cast<int>(work.out.size(1));
  shape.k = static_cast<int>(work.a.size(1));
  shape.bias = work.bias.raw();
  shape.bias_type = work.bias.dtype();
  shape.accumulate = work.accumulate;
  shape.out_type = work.out.dtype();
  shape.out_stride = work.out.stride(0);
  shape.m = static_cast<int>(work.out.size(0));
  shape.split = split > 0 ? split : usual_split(context, weight, std::min(shape.m, pass_rows));
  const int rows_at_once = rows_that_fit(context, weight, shape, shape.split);
  if (rows_at_once == 0) return false;
  for (int64_t row = 0; row < work.out.size(0); row += rows_at_once) {
    shape.m = static_cast<int>(std::min<int64_t>(rows_at_once, work.out.size(0) - row));
    const ConstTensorView a = work.a.rows(row, shape.m);
    if (norm.weight.raw() != nullptr) {
      shape.unnormed = device_data<float>(a);
      shape.norm = device_data<__nv_bfloat16>(norm.weight);
    } else {
      shape.a = device_data<__nv_bfloat16>(a);
      shape.whole_vectors =
          starts_at_sixteen_bytes(a.raw()) && shape.a_stride % 8 == 0 && shape.k % 8 == 0;
    }
    shape.out = work.out.rows(row, shape.m).raw();
    shape.m > tile_rows ? run_pass<Weights, 2>(context, weight, shape)
                        : run_pass<Weights, 1>(context, weight, shape);
  }
  return true;
}

}  // namespace
}  // namespace few

bool packed_norm_fits(const MatmulWork& work, const RowNorm& norm) {
  return few::norm_fits(work, norm);
}

bool packed_few_rows(const Context& context, const MatmulWork& work, const PackedStrips& weight,
                     const RowNorm& norm, int split) {
  bool done = false;
  const StripCodes codes = codes_of(weight);
  with_packed_kind(weight.kind(), [&]<PackedKind kind> {
    if constexpr (kind == PackedKind::int4) {
      if (codes.group_pieces % 2 == 0) {
        done = few::run_passes(context, work, few::Source<kind, 2>(codes), norm, split);
        return;
      }
    }
    done = few::run_passes(context, work, few::Source<kind, 1>(codes), norm, split);
  });
  return done;
}

}  // namespace kinora::cuda
