#include "ops/rms_norm.h"

#include "ops/checks.h"
#include "ops/cpu_kernels.h"
#include "ops/cuda_kernels.h"

namespace kinora {

void rms_norm(const Context& context, ConstTensorView x, ConstTensorView weight, float epsilon,
              TensorView out) {
  const OpChecks checks(context, "rms_norm", {{"x", x}, {"weight", weight}, {"out", out}});
  checks.activation("x", x);
  checks.activation("out", out);
  checks.floating("weight", weight);
  checks.rank("x", x, 1, Shape::max_rank);
  checks.shape("weight", weight, {x.size(x.rank() - 1)});
  checks.shape("out", out, x.shape());
  context.device.is_cpu() ? cpu::rms_norm(context, x, weight, epsilon, out)
                          : cuda::rms_norm(context, x, weight, epsilon, out);
}

}  // namespace kinora
