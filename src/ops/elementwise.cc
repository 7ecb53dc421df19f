#include "ops/elementwise.h"

#include "ops/checks.h"
#include "ops/cpu_kernels.h"

namespace kinora {

void add(const Context& context, ConstTensorView a, ConstTensorView b, TensorView out) {
  const OpChecks checks(context, "add", {{"a", a}, {"b", b}, {"out", out}});
  checks.f32("a", a);
  checks.f32("b", b);
  checks.f32("out", out);
  checks.shape("b", b, a.shape());
  checks.shape("out", out, a.shape());
  cpu::add(context, a, b, out);
}

void add_bias(const Context& context, ConstTensorView bias, TensorView x) {
  const OpChecks checks(context, "add_bias", {{"bias", bias}, {"x", x}});
  checks.floating("bias", bias);
  checks.f32("x", x);
  checks.rank("x", x, 1, Shape::max_rank);
  checks.shape("bias", bias, {x.size(x.rank() - 1)});
  cpu::add_bias(context, bias, x);
}

void scale(const Context& context, ConstTensorView x, float factor, TensorView out) {
  const OpChecks checks(context, "scale", {{"x", x}, {"out", out}});
  checks.f32("x", x);
  checks.f32("out", out);
  checks.shape("out", out, x.shape());
  cpu::scale(context, x, factor, out);
}

void convert(const Context& context, ConstTensorView x, TensorView out) {
  const OpChecks checks(context, "convert", {{"x", x}, {"out", out}});
  checks.floating("x", x);
  checks.floating("out", out);
  checks.shape("out", out, x.shape());
  cpu::convert(context, x, out);
}

}  // namespace kinora
