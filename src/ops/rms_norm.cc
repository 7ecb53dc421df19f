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

void add_rms_norm(const Context& context, ConstTensorView x, TensorView residual,
                  ConstTensorView weight, float epsilon, TensorView out) {
  const OpChecks checks(context, "add_rms_norm",
                        {{"x", x}, {"residual", residual}, {"weight", weight}, {"out", out}});
  checks.activation("x", x);
  checks.f32("residual", residual);
  checks.activation("out", out);
  checks.floating("weight", weight);
  checks.rank("x", x, 1, Shape::max_rank);
  checks.shape("weight", weight, {x.size(x.rank() - 1)});
  checks.shape("residual", residual, x.shape());
  checks.shape("out", out, x.shape());
  checks.that(out.raw() != residual.raw() || x.elements() == 0,
              "out must not be the residual, which keeps the sum");
  context.device.is_cpu() ? cpu::add_rms_norm(context, x, residual, weight, epsilon, out)
                          : cuda::add_rms_norm(context, x, residual, weight, epsilon, out);
}

}  // namespace kinora
