#include "base/cuda_support.h"
#include "model/decoder/decode_step.h"
#include "ops/packed_rows_cuda.cuh"

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

// A norm of heads, or none.
struct Norms {
  const float* query;  // [2 × half], or null
  const float* key;
  float epsilon;
};
static_assert(append_threads >= most_decode_sequences, "a thread looks at a sequence");

template <typename Row>
constexpr bool is_code = std::is_same_v<Row, int8_t> || std::is_same_v<Row, e4m3>;

// blockIdx: x the head (queries, then keys, then values), y the token. A head that goes into 8 bits
// is gathered in shared memory first.
template <typename X, typename Row>
__global__ void append_kernel(const X* qkv, int64_t qkv_stride, const float* cos, const float* sin,
                              X* queries, const DeviceSequence* sequences, int sequence_count,
                              int heads, int kv_heads, int half, Norms norms) {
  extern __shared__ float gathered[];  // [2 × half], only for codes
  __shared__ int found;
  __shared__ float scratch[32];
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
  const bool of_value = head >= heads + kv_heads;
  const int kv_head = of_value ? head - heads - kv_heads : head - heads;
  void* rows = const_cast<void*>(of_value ? own.values : own.keys);
  const float* norm = of_value ? nullptr : head < heads ? norms.query : norms.key;
  float factor = 1;
  if (norm != nullptr) {
    float squares = 0;
    for (int i = thread; i < 2 * half; i += append_threads) {
      squares += to_float(source[i]) * to_float(source[i]);
    }
    squares = block_sum(squares, scratch);
    factor = 1.0f / sqrtf(squares / static_cast<float>(2 * half) + norms.epsilon);
  }
  for (int i = thread; i < half; i += append_threads) {
    float y1 = to_float(source[i]), y2 = to_float(source[half + i]);
    if (norm != nullptr) {
      y1 = to_float(from_float<X>(y1 * factor * norm[i]));
      y2 = to_float(from_float<X>(y2 * factor * norm[half + i]));
    }
    if (!of_value) {
      const float x1 = y1, x2 = y2;
      const float c = cos[token * half + i], s = sin[token * half + i];
      y1 = x1 * c - x2 * s;
      y2 = x2 * c + x1 * s;
    }
    if (head < heads) {
      X* target = queries + (static_cast<int64_t>(token) * heads + head) * 2 * half;
      target[i] = from_float<X>(y1);
      target[half + i] = from_float<X>(y2);
    } else if constexpr (is_code<Row>) {
      gathered[i] = y1;
      gathered[half + i] = y2;
    } else {
      Row* target = static_cast<Row*>(rows) + (row * kv_heads + kv_head) * 2 * half;
      target[i] = from_float<Row>(y1);
      target[half + i] = from_float<Row>(y2);
    }
  }
  if constexpr (is_code<Row>) {
    if (head < heads) return;
    __syncthreads();
    const int size = 2 * half, lane = thread % 32;
    constexpr int scale_bytes = static_cast<int>(sizeof(bf16));
    uint8_t* target =
        static_cast<uint8_t*>(rows) + (row * kv_heads + kv_head) * stored_columns(DType::i8, size);
    for (int block = thread / 32; block * 32 < size; block += append_threads / 32) {
      const int first = block * 32, count = min(32, size - first);
      pack_columns<Row>(lane < count ? gathered[first + lane] : 0, count, target + first,
                        target + size + block * scale_bytes);
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
                      int sequence_count, int64_t kv_heads, DType row_type,
                      const HeadNorms& norms) {
  const auto heads = static_cast<int>(queries.size(1));
  const auto half = static_cast<int>(queries.size(2) / 2);
  const dim3 grid(static_cast<unsigned int>(heads + 2 * kv_heads),
                  static_cast<unsigned int>(qkv.size(0)));
  Norms weights{};
  if (norms.query.raw() != nullptr) {
    weights = {device_data<float>(norms.query), device_data<float>(norms.key), norms.epsilon};
  }
  const auto start = [&]<typename X, typename Row>(X, Row) {
    const size_t room = is_code<Row> ? 2 * static_cast<size_t>(half) * sizeof(float) : 0;
    launch_early({grid, append_threads, room, enter(context)}, "rope_append", append_kernel<X, Row>,
                 device_data<X>(qkv), qkv.stride(0), device_data<float>(cos),
                 device_data<float>(sin), device_data<X>(queries), sequences, sequence_count, heads,
                 static_cast<int>(kv_heads), half, weights);
  };
  with_activation(qkv.dtype(), [&](auto x) {
    if (rows_are_packed(row_type)) {
      with_codes(row_type, [&](auto code) { start(x, code); });
    } else {
      with_activation(row_type, [&](auto element) { start(x, element); });
    }
  });
}

}  // namespace kinora::cuda
