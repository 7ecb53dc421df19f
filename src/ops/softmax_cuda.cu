#include "ops/cuda_kernels.h"
#include "ops/rows_cuda.h"

namespace kinora::cuda {
namespace {

__global__ void softmax_kernel(const float* x, DeviceRows x_rows, float* out, DeviceRows out_rows,
                               int64_t width, float scale) {
  __shared__ float scratch[32];
  const float* source = x + x_rows.offset(blockIdx.x);
  float* target = out + out_rows.offset(blockIdx.x);
  float highest = -INFINITY;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) highest = fmaxf(highest, source[i]);
  highest = block_max(highest, scratch);
  // Where everything is masked, all weights are zero and so is their sum.
  const float from = highest == -INFINITY ? 0.0f : highest;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const float weight = expf((source[i] - from) * scale);
    target[i] = weight;
    sum += weight;
  }
  sum = block_sum(sum, scratch);
  const float factor = sum > 0 ? 1.0f / sum : 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) target[i] *= factor;
}

__global__ void exp_sum_kernel(const float* x, int64_t count, float highest, double factor,
                               double* sum) {
  __shared__ double parts[32];
  double own = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const double value = x[i];
    if (!isnan(value)) own += exp((value - highest) * factor);
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    own += __shfl_xor_sync(0xffffffffu, own, distance);
  }
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (unsigned int warp = 1; warp < blockDim.x / 32; ++warp) own += parts[warp];
  sum[blockIdx.x] = own;
}

}  // namespace

void softmax(const Context& context, ConstTensorView x, TensorView out, float scale) {
  const int64_t rows = rows_of(x), width = width_of(x);
  if (rows * width == 0) return;
  const auto threads =
      static_cast<unsigned int>(std::clamp<int64_t>((width + 31) / 32 * 32, 32, 1024));
  launch({static_cast<unsigned int>(rows), threads, 0, enter(context)}, "softmax", softmax_kernel,
         device_data<float>(x), DeviceRows(x), device_data<float>(out), DeviceRows(out), width,
         scale);
}

// Blocks leave their parts side by side, so that the sum has one order.
double exp_sum(const Context& context, ConstTensorView x, float highest, double factor) {
  constexpr int blocks = 64;
  Tensor parts(DType::u8, {blocks * 8}, context.device);
  launch({blocks, 256, 0, enter(context)}, "exp_sum", exp_sum_kernel, device_data<float>(x),
         x.size(0), highest, factor, reinterpret_cast<double*>(parts.view().raw()));
  double values[blocks];
  check(cudaMemcpyAsync(values, parts.view().raw(), sizeof(values), cudaMemcpyDeviceToHost,
                        enter(context)),
        "copying from a GPU");
  check(cudaStreamSynchronize(enter(context)), "exp_sum");
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

}  // namespace kinora::cuda
