#include "ops/softmax.h"

#include <cmath>

#include "ops/checks.h"
#include "ops/cpu_kernels.h"
#include "ops/cuda_kernels.h"

namespace kinora {

void softmax(const Context& context, ConstTensorView x, TensorView out, float scale) {
  const OpChecks checks(context, "softmax", {{"x", x}, {"out", out}});
  checks.f32("x", x);
  checks.f32("out", out);
  checks.rank("x", x, 1, Shape::max_rank);
  checks.shape("out", out, x.shape());
  checks.that(scale > 0, "the scale must be positive");
  context.device.is_cpu() ? cpu::softmax(context, x, out, scale)
                          : cuda::softmax(context, x, out, scale);
}

double exp_sum(const Context& context, ConstTensorView x, float highest, double factor) {
  const OpChecks checks(context, "exp_sum", {{"x", x}});
  checks.f32("x", x);
  checks.rank("x", x, 1, 1);
  if (x.size(0) == 0) return 0;
  if (!context.device.is_cpu()) return cuda::exp_sum(context, x, highest, factor);
  double sum = 0;
  const float* values = x.data<float>();
  for (int64_t i = 0; i < x.size(0); ++i) {
    const double value = values[i];
    if (!std::isnan(value)) sum += std::exp((value - highest) * factor);
  }
  return sum;
}

}  // namespace kinora
