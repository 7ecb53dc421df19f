#include "base/cuda_support.h"
#include "model/decoder/decode_step.h"

namespace kinora::cuda {
namespace {

__global__ void table_kernel(const int32_t* positions, const double* frequencies,
                             const int32_t* axes, int64_t columns, float* cos_out, float* sin_out) {
  const int64_t row = blockIdx.x;
  for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
    double sine = 0, cosine = 0;
    sincos(static_cast<double>(positions[row * 3 + axes[i]]) * frequencies[i], &sine, &cosine);
    cos_out[row * columns + i] = static_cast<float>(cosine);
    sin_out[row * columns + i] = static_cast<float>(sine);
  }
}

constexpr int append_threads = 64;
static_assert(append_threads >= most_decode_sequences, "a thread looks at a sequence");

// blockIdx: x the head (queries, then keys, then values), y the token.
template <typename X, typename Row>
__global__ void append_kernel(const X* qkv, int64_t qkv_stride, const float* cos, const float* sin,
                              X* queries, const DeviceSequence* sequences, int sequence_count,
                              int heads, int kv_heads, int half) {
  __shared__ int found;
  let_next_start();
  const int head = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const auto token = static_cast<int32_t>(blockIdx.y);
  if (thread == 0) found = -1;
  __syncthreads();
  if (thread < sequence_count) {
    const int32_t place = token - sequences[thread].first_token;
    if (place >= 0 && place < sequences[thread].tokens) found = thread;
  }
  __syncthreads();
  wait_for_previous();
  if (found < 0) return;
  const DeviceSequence& sequence = sequences[found];
  const DeviceRowSet& own = sequence.sets[sequence.own];
  const int64_t row = own.count - sequence.tokens + token - sequence.first_token;
  const X* source = qkv + token * qkv_stride + static_cast<int64_t>(head) * 2 * half;
  for (int i = thread; i < half; i += append_threads) {
    const float x1 = to_float(source[i]), x2 = to_float(source[half + i]);
    if (head >= heads + kv_heads) {
      Row* target = static_cast<Row*>(const_cast<void*>(own.values)) +
                    (row * kv_heads + head - heads - kv_heads) * 2 * half;
      target[i] = from_float<Row>(x1);
      target[half + i] = from_float<Row>(x2);
      continue;
    }
    const float c = cos[token * half + i], s = sin[token * half + i];
    const float y1 = x1 * c - x2 * s, y2 = x2 * c + x1 * s;
    if (head < heads) {
      X* target = queries + (static_cast<int64_t>(token) * heads + head) * 2 * half;
      target[i] = from_float<X>(y1);
      target[half + i] = from_float<X>(y2);
    } else {
      Row* target = static_cast<Row*>(const_cast<void*>(own.keys)) +
                    (row * kv_heads + head - heads) * 2 * half;
      target[i] = from_float<Row>(y1);
      target[half + i] = from_float<Row>(y2);
    }
  }
}

}  // namespace

void step_rope_table(const Context& context, const int32_t* positions, const double* frequencies,
                     const int32_t* axes, TensorView cos, TensorView sin) {
  launch({static_cast<unsigned int>(cos.size(0)), 64, 0, enter(context)}, "rope_table",
         table_kernel, positions, frequencies, axes, cos.size(1), device_data<float>(cos),
         device_data<float>(sin));
}

void step_rope_append(const Context& context, ConstTensorView cos, ConstTensorView sin,
                      ConstTensorView qkv, TensorView queries, const DeviceSequence* sequences,
                      int sequence_count, int64_t kv_heads, DType row_type) {
  const auto heads = static_cast<int>(queries.size(1));
  const auto half = static_cast<int>(queries.size(2) / 2);
  const Launch how{
      dim3(static_cast<unsigned int>(heads + 2 * kv_heads), static_cast<unsigned int>(qkv.size(0))),
      append_threads, 0, enter(context)};
  with_activation(qkv.dtype(), [&]<typename X>(X) {
    with_activation(row_type, [&]<typename Row>(Row) {
      launch_early(how, "rope_append", append_kernel<X, Row>, device_data<X>(qkv), qkv.stride(0),
                   device_data<float>(cos), device_data<float>(sin), device_data<X>(queries),
                   sequences, sequence_count, heads, static_cast<int>(kv_heads), half);
    });
  });
}

}  // namespace kinora::cuda
