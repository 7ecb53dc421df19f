// Kernels of attention_mass.h: from products of queries and keys to what each row gets of them.
#include <mma.h>

#include "base/cuda_support.h"
#include "memory/row_ops/attention_mass.h"

namespace kinora::cuda {
namespace {

// One block per token and head.
template <typename T>
__global__ void arrange_query(const float* queries, int64_t heads, int64_t share, int64_t room,
                              int64_t head_size, float scale, T* out, float* lengths) {
  __shared__ float scratch[32];
  const int64_t token = blockIdx.x / heads, head = blockIdx.x % heads;
  const int64_t row = head / share * room + token * share + head % share;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < head_size; i += blockDim.x) {
    const float value = scale * queries[(token * heads + head) * head_size + i];
    out[row * head_size + i] = from_float<T>(value);
    squares += value * value;
  }
  squares = block_sum(squares, scratch);
  if (threadIdx.x == 0) lengths[row] = sqrtf(squares);
}

constexpr int tile = 16;           // of the tensor cores, each way
constexpr int warps_of_tiles = 4;  // of a block: each has its own keys
constexpr int tiles_of_warp = 4;   // of queries that a warp goes through

// A warp holds sixteen keys of one head and meets tiles of its queries, one after another. Where
// there is room for more queries than there are, it meets whatever lies there, and nobody looks.
template <int parts>  // of a head, sixteen columns each
__global__ void score_tiles(const __nv_bfloat16* queries, const __nv_bfloat16* keys,
                            int64_t key_stride, int64_t room, int64_t rows, float* scores) {
  using namespace nvcuda::wmma;
  constexpr int size = parts * tile;
  const int64_t row = (int64_t{blockIdx.x} * warps_of_tiles + threadIdx.x / 32) * tile;
  if (row >= rows) return;
  const int64_t head = blockIdx.y;
  fragment<matrix_b, tile, tile, tile, __nv_bfloat16, col_major> key[parts];
#pragma unroll
  for (int part = 0; part < parts; ++part) {
    load_matrix_sync(key[part], keys + row * key_stride + head * size + part * tile,
                     static_cast<unsigned int>(key_stride));
  }
  const int64_t begin = int64_t{blockIdx.z} * tiles_of_warp * tile;
  const int64_t end = min(room, begin + tiles_of_warp * tile);
  for (int64_t first = begin; first < end; first += tile) {
    const __nv_bfloat16* query = queries + (head * room + first) * size;
    fragment<accumulator, tile, tile, tile, float> sums;
    fill_fragment(sums, 0.0f);
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      fragment<matrix_a, tile, tile, tile, __nv_bfloat16, row_major> some;
      load_matrix_sync(some, query + part * tile, size);
      mma_sync(sums, some, key[part], sums);
    }
    store_matrix_sync(scores + (head * room + first) * rows + row, sums,
                      static_cast<unsigned int>(rows), mem_row_major);
  }
}

struct Terms {
  const float* log_weights;
  const float* spreads;  // null: none
  const float* lengths;

  // See attention_mass.h; −∞ for a row that is left out.
  __device__ float of(int64_t query, int64_t row) const {
    const float log_weight = log_weights[row];
    if (spreads == nullptr || !(log_weight > 0)) return log_weight;
    const float t = lengths[query] * spreads[row], most = sqrtf(2 * log_weight);
    return log_weight + (t < most ? t * t / 2 : most * (t - most / 2));
  }
};

// One block per query: the largest of its scores, and the sum of e^(score − largest).
// grid: (queries of a kv head, kv heads)
__global__ void row_statistics(const float* scores, Terms terms, int64_t room, int64_t columns,
                               float2* statistics) {
  __shared__ float scratch[32];
  const int64_t query = blockIdx.y * room + blockIdx.x;
  const float* row = scores + query * columns;
  float largest = -INFINITY;
  for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
    largest = fmaxf(largest, row[i] + terms.of(query, i));
  }
  largest = block_max(largest, scratch);
  float sum = 0;
  for (int64_t i = threadIdx.x; i < columns && largest > -INFINITY; i += blockDim.x) {
    sum += __expf(row[i] + terms.of(query, i) - largest);
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) statistics[query] = {largest, sum};
}

constexpr int columns_of_block = 32, lanes_of_block = 16;

// A block adds up 32 columns; 16 threads share the queries of each. In a fixed order, so that the
// same question always finds the same rows.
__global__ void sum_columns(const float* scores, Terms terms, const float2* statistics,
                            MassQueries queries, int64_t columns, bool softmax, bool add,
                            float* mass) {
  __shared__ float parts[lanes_of_block][columns_of_block];
  const int64_t column = int64_t{blockIdx.x} * columns_of_block + threadIdx.x;
  float sum = 0;
  if (column < columns) {
    const float log_weight = terms.log_weights[column];
    for (int64_t head = 0; head < queries.kv_heads; ++head) {
      for (int64_t i = threadIdx.y; i < queries.each; i += lanes_of_block) {
        const int64_t row = head * queries.room + i;
        const float score = scores[row * columns + column];
        if (!softmax) {
          sum += log_weight > -INFINITY ? score : 0.0f;
        } else if (statistics[row].y > 0) {
          sum += __expf(score + terms.of(row, column) - statistics[row].x) / statistics[row].y;
        }
      }
    }
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= columns) return;
  for (int lane = 1; lane < lanes_of_block; ++lane) sum += parts[lane][threadIdx.x];
  mass[column] = add ? mass[column] + sum : sum;
}

}  // namespace

void arrange_queries(const Context& context, ConstTensorView queries, float scale,
                     const MassQueries& how, TensorView out, TensorView lengths) {
  const int64_t tokens = queries.size(0), heads = queries.size(1);
  const Launch grid{static_cast<unsigned int>(tokens * heads), 128, 0, enter(context)};
  with_activation(out.dtype(), [&]<typename T>(T) {
    launch(grid, "arrange_queries", arrange_query<T>, device_data<float>(queries), heads,
           heads / how.kv_heads, how.room, queries.size(2), scale, device_data<T>(out),
           device_data<float>(lengths));
  });
}

bool score_keys(const Context& context, ConstTensorView queries, ConstTensorView keys,
                TensorView scores) {
  const int64_t kv_heads = queries.size(0), room = queries.size(1), size = queries.size(2);
  const int64_t rows = keys.size(0), stride = keys.stride(0);
  const bool whole_lines = reinterpret_cast<uintptr_t>(keys.raw()) % 32 == 0 &&
                           stride % tile == 0 && rows % tile == 0 &&
                           reinterpret_cast<uintptr_t>(scores.raw()) % 32 == 0;
  if (keys.dtype() != DType::bf16 || room % tile != 0 || !whole_lines) return false;
  const dim3 grid(blocks_for(rows, warps_of_tiles * tile), static_cast<unsigned int>(kv_heads),
                  blocks_for(room, tiles_of_warp * tile));
  const Launch how{grid, 32 * warps_of_tiles, 0, enter(context)};
  const auto start = [&](auto kernel) {
    launch(how, "score_keys", kernel, device_data<__nv_bfloat16>(queries),
           device_data<__nv_bfloat16>(keys), stride, room, rows, device_data<float>(scores));
    return true;
  };
  switch (size) {
    case 32:
      return start(score_tiles<2>);
    case 64:
      return start(score_tiles<4>);
    case 80:
      return start(score_tiles<5>);
    case 96:
      return start(score_tiles<6>);
    case 128:
      return start(score_tiles<8>);
    default:
      return false;
  }
}

void sum_attention_mass(const Context& context, ConstTensorView scores, const MassQueries& how,
                        const MassTerms& given, bool softmax, bool add, TensorView statistics,
                        TensorView mass) {
  cudaStream_t stream = enter(context);
  const int64_t columns = mass.size(0);
  const Terms terms{device_data<float>(given.log_weights),
                    given.spreads.raw() == nullptr ? nullptr : device_data<float>(given.spreads),
                    device_data<float>(given.lengths)};
  if (softmax) {
    // A block goes through a whole row, and rows are too few to fill a GPU with small ones.
    const unsigned int threads = columns > 2048 ? 1024 : 256;
    const dim3 grid(static_cast<unsigned int>(how.each), static_cast<unsigned int>(how.kv_heads));
    launch({grid, threads, 0, stream}, "row_statistics", row_statistics, device_data<float>(scores),
           terms, how.room, columns, device_data<float2>(statistics));
  }
  const dim3 block(columns_of_block, lanes_of_block);
  launch({blocks_for(columns, columns_of_block), block, 0, stream}, "sum_columns", sum_columns,
         device_data<float>(scores), terms, device_data<float2>(ConstTensorView(statistics)), how,
         columns, softmax, add, device_data<float>(mass));
}

}  // namespace kinora::cuda
