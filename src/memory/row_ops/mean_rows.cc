#include "memory/row_ops/mean_rows.h"

#include <algorithm>

#include "base/gpu.h"

namespace kinora {

std::vector<float> mean_rows(const Context& context, ConstTensorView rows,
                             std::span<const int32_t> begins) {
  const auto count = std::ssize(begins) - 1;
  const int64_t width = rows.size(1);
  std::vector<float> out(static_cast<size_t>(count * width));
  if (!context.device.is_cpu()) {
    Tensor there(DType::i32, {std::ssize(begins)}, context.device);
    copy_async(context, there.view().raw(), begins.data(), begins.size_bytes());
    Tensor means(DType::f32, {count, width}, context.device);
    cuda::mean_rows(context, rows, there, means.view());
    synchronize(context);
    copy_bytes(out.data(), Device::cpu(), means.view().raw(), context.device,
               out.size() * sizeof(float));
    return out;
  }
  std::vector<double> sum(static_cast<size_t>(width));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = begins[static_cast<size_t>(i)], end = begins[static_cast<size_t>(i) + 1];
    std::fill(sum.begin(), sum.end(), 0.0);
    for (int64_t row = begin; row < end; ++row) {
      const float* from = rows.data<float>() + row * rows.stride(0);
      for (size_t k = 0; k < sum.size(); ++k) sum[k] += double{from[k]};
    }
    float* to = out.data() + i * width;
    for (size_t k = 0; k < sum.size(); ++k) {
      to[k] = static_cast<float>(sum[k] / static_cast<double>(std::max<int64_t>(1, end - begin)));
    }
  }
  return out;
}

}  // namespace kinora
