#include "ops/layer_norm.h"

#include "ops/checks.h"
#include "ops/cpu_kernels.h"
#include "ops/cuda_kernels.h"

namespace kinora {

void layer_norm(const Context& context, ConstTensorView x, ConstTensorView weight,
                ConstTensorView bias, float epsilon, TensorView out) {
  const OpChecks checks(context, "layer_norm",
                        {{"x", x}, {"weight", weight}, {"bias", bias}, {"out", out}});
  checks.activation("x", x);
  checks.activation("out", out);
  checks.floating("weight", weight);
  checks.rank("x", x, 1, Shape::max_rank);
  checks.shape("weight", weight, {x.size(x.rank() - 1)});
  checks.shape("bias", bias, weight.shape());
  checks.that(bias.dtype() == weight.dtype(), "weight and bias must have the same type");
  checks.shape("out", out, x.shape());
  context.device.is_cpu() ? cpu::layer_norm(context, x, weight, bias, epsilon, out)
                          : cuda::layer_norm(context, x, weight, bias, epsilon, out);
}

}  // namespace kinora
