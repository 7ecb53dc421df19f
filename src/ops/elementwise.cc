#include "ops/elementwise.h"

#include "ops/checks.h"
#include "ops/cpu_kernels.h"
#include "ops/cuda_kernels.h"

namespace kinora {

void add(const Context& context, ConstTensorView a, ConstTensorView b, TensorView out) {
  const OpChecks checks(context, "add", {{"a", a}, {"b", b}, {"out", out}});
  checks.activation("a", a);
  checks.activation("b", b);
  checks.activation("out", out);
  checks.that(a.dtype() == b.dtype() && a.dtype() == out.dtype(), "all must have one type");
  checks.shape("b", b, a.shape());
  checks.shape("out", out, a.shape());
  context.device.is_cpu() ? cpu::add(context, a, b, out) : cuda::add(context, a, b, out);
}

void add_bias(const Context& context, ConstTensorView bias, TensorView x) {
  const OpChecks checks(context, "add_bias", {{"bias", bias}, {"x", x}});
  checks.floating("bias", bias);
  checks.activation("x", x);
  checks.rank("x", x, 1, Shape::max_rank);
  checks.shape("bias", bias, {x.size(x.rank() - 1)});
  context.device.is_cpu() ? cpu::add_bias(context, bias, x) : cuda::add_bias(context, bias, x);
}

void scale(const Context& context, ConstTensorView x, float factor, TensorView out) {
  const OpChecks checks(context, "scale", {{"x", x}, {"out", out}});
  checks.activation("x", x);
  checks.activation("out", out);
  checks.that(x.dtype() == out.dtype(), "x and out must have one type");
  checks.shape("out", out, x.shape());
  context.device.is_cpu() ? cpu::scale(context, x, factor, out)
                          : cuda::scale(context, x, factor, out);
}

void convert(const Context& context, ConstTensorView x, TensorView out) {
  const OpChecks checks(context, "convert", {{"x", x}, {"out", out}});
  checks.floating("x", x);
  checks.floating("out", out);
  checks.shape("out", out, x.shape());
  context.device.is_cpu() ? cpu::convert(context, x, out) : cuda::convert(context, x, out);
}

}  // namespace kinora
