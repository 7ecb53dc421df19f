// Kernels of attention_mass.h: from products of queries and keys to what each row gets of them.
#include "base/cuda_support.h"
#include "memory/row_ops/attention_mass.h"

namespace kinora::cuda {
namespace {

// One block per token and head.
template <typename T>
__global__ void arrange_query(const float* queries, int64_t heads, int64_t share, int64_t tokens,
                              int64_t head_size, float scale, T* out, float* lengths) {
  __shared__ float scratch[32];
  const int64_t token = blockIdx.x / heads, head = blockIdx.x % heads;
  const int64_t row = (head / share * tokens + token) * share + head % share;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < head_size; i += blockDim.x) {
    const float value = scale * queries[(token * heads + head) * head_size + i];
    out[row * head_size + i] = from_float<T>(value);
    squares += value * value;
  }
  squares = block_sum(squares, scratch);
  if (threadIdx.x == 0) lengths[row] = sqrtf(squares);
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

// One block per row of scores: its largest, and the sum of e^(score − largest).
__global__ void row_statistics(const float* scores, Terms terms, int64_t columns,
                               float2* statistics) {
  __shared__ float scratch[32];
  const float* row = scores + blockIdx.x * columns;
  float largest = -INFINITY;
  for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
    largest = fmaxf(largest, row[i] + terms.of(blockIdx.x, i));
  }
  largest = block_max(largest, scratch);
  float sum = 0;
  for (int64_t i = threadIdx.x; i < columns && largest > -INFINITY; i += blockDim.x) {
    sum += __expf(row[i] + terms.of(blockIdx.x, i) - largest);
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) statistics[blockIdx.x] = {largest, sum};
}

constexpr int columns_of_block = 32, lanes_of_block = 16;

// A block adds up 32 columns; 16 threads share the queries of each. In a fixed order, so that the
// same question always finds the same rows.
__global__ void sum_columns(const float* scores, Terms terms, const float2* statistics,
                            int64_t rows, int64_t columns, bool softmax, float* mass) {
  __shared__ float parts[lanes_of_block][columns_of_block];
  const int64_t column = int64_t{blockIdx.x} * columns_of_block + threadIdx.x;
  float sum = 0;
  if (column < columns) {
    const float log_weight = terms.log_weights[column];
    for (int64_t row = threadIdx.y; row < rows; row += lanes_of_block) {
      const float score = scores[row * columns + column];
      if (!softmax) {
        sum += log_weight > -INFINITY ? score : 0.0f;
      } else if (statistics[row].y > 0) {
        sum += __expf(score + terms.of(row, column) - statistics[row].x) / statistics[row].y;
      }
    }
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= columns) return;
  for (int lane = 1; lane < lanes_of_block; ++lane) sum += parts[lane][threadIdx.x];
  mass[column] += sum;
}

}  // namespace

void arrange_queries(const Context& context, ConstTensorView queries, float scale, TensorView out,
                     TensorView lengths) {
  const int64_t tokens = queries.size(0), heads = queries.size(1);
  const Launch how{static_cast<unsigned int>(tokens * heads), 128, 0, enter(context)};
  with_activation(out.dtype(), [&]<typename T>(T) {
    launch(how, "arrange_queries", arrange_query<T>, device_data<float>(queries), heads,
           heads / out.size(0), tokens, queries.size(2), scale, device_data<T>(out),
           device_data<float>(lengths));
  });
}

void add_attention_mass(const Context& context, ConstTensorView scores, const MassTerms& given,
                        bool softmax, TensorView statistics, TensorView mass) {
  cudaStream_t stream = enter(context);
  const int64_t rows = scores.size(0), columns = scores.size(1);
  const Terms terms{device_data<float>(given.log_weights),
                    given.spreads.raw() == nullptr ? nullptr : device_data<float>(given.spreads),
                    device_data<float>(given.lengths)};
  if (softmax) {
    // A block goes through a whole row, and rows are too few to fill a GPU with small ones.
    const unsigned int threads = columns > 2048 ? 1024 : 256;
    launch({static_cast<unsigned int>(rows), threads, 0, stream}, "row_statistics", row_statistics,
           device_data<float>(scores), terms, columns, device_data<float2>(statistics));
  }
  const dim3 block(columns_of_block, lanes_of_block);
  launch({blocks_for(columns, columns_of_block), block, 0, stream}, "sum_columns", sum_columns,
         device_data<float>(scores), terms, device_data<float2>(ConstTensorView(statistics)), rows,
         columns, softmax, device_data<float>(mass));
}

}  // namespace kinora::cuda
