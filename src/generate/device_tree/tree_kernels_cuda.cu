#include "base/cuda_support.h"
#include "generate/device_tree/tree_kernels.h"

namespace kinora::cuda {
namespace {

constexpr int grow_threads = 256;
constexpr int most_width = 32;

// One block. Candidates of a level are compared all with all: there are a thousand at most.
__global__ void __launch_bounds__(grow_threads)
    grow_kernel(const Candidate* best, const int32_t* taken, const double* mass,
                const int32_t* names, int width, int level, bool last,
                const __grid_constant__ TreeTables tree) {
  __shared__ float confidences[most_width * most_width];
  __shared__ int order[most_width];  // candidates of the level that become tokens
  __shared__ uint64_t ancestors[most_width];
  const int parents = level == 0 ? 1 : width;
  const int count = parents * width;
  const int first = level == 0 ? 0 : width + (level - 1) * width * width;
  const int first_parent = (level - 1) * width;  // tokens
  const int thread = static_cast<int>(threadIdx.x);
  let_next_start();
  wait_for_previous();
  if (thread < parents) ancestors[thread] = level == 0 ? 0 : tree.masks[first_parent + thread];
  for (int i = thread; i < count; i += grow_threads) {
    const int row = i / width, place = i % width;
    const float above = level == 0 ? 0 : tree.confidence[first_parent + row];
    // What comes after a candidate that is none is none either.
    const bool there = place < taken[row] && above > -INFINITY;
    float likely = -INFINITY;
    int32_t token = -1;
    if (there) {
      const Candidate found = best[i];
      const double below =
          static_cast<double>(found.value) - static_cast<double>(best[row * width].value);
      likely = static_cast<float>(below - log(mass[row]));
      token = names == nullptr ? found.index : names[found.index];
    }
    // A probability is at most 1, whatever rounding says.
    const float confidence = there ? above + fminf(0, likely) : -INFINITY;
    tree.guesses[first + i] = token;
    tree.likely[first + i] = likely;
    confidences[i] = confidence;
  }
  if (last) return;
  __syncthreads();
  for (int i = thread; i < count; i += grow_threads) {
    const float own = confidences[i];
    int better = 0;
#pragma unroll 8
    for (int other = 0; other < count; ++other) {
      better += confidences[other] > own || (confidences[other] == own && other < i);
    }
    if (better < width) order[better] = i;
  }
  __syncthreads();
  if (thread >= width) return;
  const int own = order[thread];
  int place = 0;
  for (int other = 0; other < width; ++other) place += order[other] < own;
  const int token = level * width + place;
  tree.masks[token] = ancestors[own / width] | uint64_t{1} << token;
  tree.confidence[token] = confidences[own];
  tree.parents[token] = level == 0 ? -1 : own / width;
  tree.chosen[token] = first + own;
  tree.ids[token] = max(0, tree.guesses[first + own]);
}

// Columns of a thread: all of them are on their way before any is used.
constexpr int join_threads = 256, join_each = 4;

// grid: (tokens, columns / (join_threads · join_each))
template <typename Table, typename Out>
__global__ void join_kernel(const Table* table, int64_t table_stride, const float* states,
                            const float* newest, const int32_t* ids, const int32_t* parents,
                            int64_t width, Out* left, int64_t left_stride, Out* right,
                            int64_t right_stride) {
  let_next_start();
  const int64_t token = blockIdx.x;
  const int64_t first = int64_t{blockIdx.y} * join_threads * join_each + threadIdx.x;
  wait_for_previous();
  const int64_t parent = parents[token];
  const Table* embedding = table + ids[token] * table_stride;
  const float* state = parent < 0 ? newest : states + parent * width;
  float embedded[join_each], stated[join_each];
#pragma unroll
  for (int k = 0; k < join_each; ++k) {
    const int64_t i = first + k * join_threads;
    embedded[k] = i < width ? to_float(embedding[i]) : 0;
    stated[k] = i < width ? state[i] : 0;
  }
#pragma unroll
  for (int k = 0; k < join_each; ++k) {
    const int64_t i = first + k * join_threads;
    if (i >= width) return;
    left[token * left_stride + i] = from_float<Out>(embedded[k]);
    right[token * right_stride + i] = from_float<Out>(stated[k]);
  }
}

}  // namespace

void grow_tree(const Context& context, const RankedThere& ranked, const int32_t* names,
               int64_t level, bool last, const TreeTables& tree) {
  launch_early({1, grow_threads, 0, enter(context)}, "growing a tree", grow_kernel, ranked.best(),
               ranked.taken(), ranked.mass(), names, static_cast<int>(ranked.k()),
               static_cast<int>(level), last, tree);
}

void join_rows(const Context& context, const TreeInput& input, TensorView left, TensorView right) {
  const auto tokens = static_cast<unsigned int>(left.size(0));
  with_float(input.table.dtype(), [&]<typename Table>(Table) {
    with_activation(left.dtype(), [&]<typename Out>(Out) {
      launch_early({dim3(tokens, blocks_for(left.size(1), join_threads * join_each)), join_threads,
                    0, enter(context)},
                   "joining rows", join_kernel<Table, Out>, device_data<Table>(input.table),
                   input.table.stride(0), device_data<float>(input.states), input.newest, input.ids,
                   input.parents, left.size(1), device_data<Out>(left), left.stride(0),
                   device_data<Out>(right), right.stride(0));
    });
  });
}

}  // namespace kinora::cuda
