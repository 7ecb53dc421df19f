#include "attention/cuda/decode/decode_cuda.h"
#include "attention/cuda/mass_cuda.h"
#include "base/cuda_support.h"

namespace kinora::cuda_attention {
namespace {

struct Accepted {
  int32_t tokens[most_decode_tokens];
  int32_t count;
};

// A thread adds up one row of a plane.  grid: (rows, planes)
__global__ void add_accepted(float* total, const float* waiting, int64_t capacity,
                             int64_t token_stride, int32_t group_begin,
                             const __grid_constant__ Accepted accepted) {
  const auto row = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= group_begin + accepted.count) return;
  const int32_t from = row < group_begin ? row : group_begin + accepted.tokens[row - group_begin];
  const int64_t plane = blockIdx.y * capacity;
  float sum = 0;
  for (int i = 0; i < accepted.count; ++i) {
    sum += waiting[accepted.tokens[i] * token_stride + plane + from];
  }
  total[plane + row] += sum;
}

}  // namespace

void accept_mass(const Context& context, TensorView total, ConstTensorView waiting,
                 int64_t group_begin, std::span<const int32_t> tokens) {
  if (std::ssize(tokens) > most_decode_tokens) {
    throw Error(ErrorKind::internal, "at most 64 tokens of a tree are accepted");
  }
  Accepted accepted{};
  for (const int32_t token : tokens) accepted.tokens[accepted.count++] = token;
  const int64_t rows = group_begin + accepted.count;
  if (rows == 0 || accepted.count == 0) return;
  constexpr int threads = 256;
  const dim3 grid(cuda::blocks_for(rows, threads), static_cast<unsigned int>(total.size(0)));
  add_accepted<<<grid, threads, 0, cuda::enter(context)>>>(
      cuda::device_data<float>(total), cuda::device_data<float>(waiting), total.size(1),
      waiting.size(1), static_cast<int32_t>(group_begin), accepted);
  cuda::check(cudaGetLastError(), "adding attention mass");
}

}  // namespace kinora::cuda_attention
