#include "base/cuda_support.h"
#include "memory/retention_scores.h"

namespace kinora::cuda {
namespace {

constexpr int warps = 8;  // of a block, one row each

template <typename T>
__global__ void sum_rows(const T* rows, int64_t count, int64_t width, const double* question,
                         double* sums) {
  const int64_t row = blockIdx.x * int64_t{warps} + threadIdx.x / 32;
  if (row >= count) return;
  const T* values = rows + row * width;
  double sum = 0;
  for (int64_t k = threadIdx.x % 32; k < width; k += 32) {
    const double value = static_cast<float>(values[k]);
    sum += value * (question == nullptr ? value : question[k]);
  }
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(~0u, sum, offset);
  if (threadIdx.x % 32 == 0) sums[row] = sum;
}

}  // namespace

void row_sums(const Context& context, ConstTensorView rows, std::span<const double> question,
              std::span<double> sums) {
  const cudaStream_t stream = enter(context);
  const int64_t count = rows.size(0), width = rows.size(1) * rows.size(2);
  if (count == 0) return;
  if (!rows.contiguous()) throw Error(ErrorKind::internal, "rows on a GPU lie side by side");
  const auto bytes = [](size_t numbers) { return static_cast<int64_t>(numbers * sizeof(double)); };
  Tensor weights, result(DType::u8, {bytes(sums.size())}, context.device);
  const double* weight_data = nullptr;
  if (!question.empty()) {
    weights = Tensor(DType::u8, {bytes(question.size())}, context.device);
    check(cudaMemcpyAsync(weights.view().raw(), question.data(), question.size_bytes(),
                          cudaMemcpyHostToDevice, stream),
          "copying to a GPU");
    weight_data = device_data<const double>(ConstTensorView(weights));
  }
  with_activation(rows.dtype(), [&](auto type) {
    using T = decltype(type);
    launch({blocks_for(count, warps), 32 * warps, 0, stream}, "row_sums", sum_rows<T>,
           device_data<T>(rows), count, width, weight_data, device_data<double>(result.view()));
  });
  check(cudaMemcpyAsync(sums.data(), result.view().raw(), sums.size_bytes(), cudaMemcpyDeviceToHost,
                        stream),
        "copying from a GPU");
  check(cudaStreamSynchronize(stream), "waiting for a GPU");
}

}  // namespace kinora::cuda
