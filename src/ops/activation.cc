#include "ops/activation.h"

#include "ops/checks.h"
#include "ops/cpu_kernels.h"
#include "ops/cuda_kernels.h"

namespace kinora {
namespace {

void check_unary(const Context& context, std::string_view op, ConstTensorView x,
                 ConstTensorView out) {
  const OpChecks checks(context, op, {{"x", x}, {"out", out}});
  checks.activation("x", x);
  checks.activation("out", out);
  checks.that(x.dtype() == out.dtype(), "x and out must have one type");
  checks.shape("out", out, x.shape());
}

}  // namespace

void silu(const Context& context, ConstTensorView x, TensorView out) {
  check_unary(context, "silu", x, out);
  context.device.is_cpu() ? cpu::silu(context, x, out) : cuda::silu(context, x, out);
}

void silu_mul(const Context& context, ConstTensorView gate, ConstTensorView up, TensorView out) {
  const OpChecks checks(context, "silu_mul", {{"gate", gate}, {"up", up}, {"out", out}});
  checks.activation("gate", gate);
  checks.activation("up", up);
  checks.activation("out", out);
  checks.that(gate.dtype() == up.dtype() && gate.dtype() == out.dtype(), "all must have one type");
  checks.shape("up", up, gate.shape());
  checks.shape("out", out, gate.shape());
  context.device.is_cpu() ? cpu::silu_mul(context, gate, up, out)
                          : cuda::silu_mul(context, gate, up, out);
}

void gelu_erf(const Context& context, ConstTensorView x, TensorView out) {
  check_unary(context, "gelu_erf", x, out);
  context.device.is_cpu() ? cpu::gelu_erf(context, x, out) : cuda::gelu_erf(context, x, out);
}

void gelu_tanh(const Context& context, ConstTensorView x, TensorView out) {
  check_unary(context, "gelu_tanh", x, out);
  context.device.is_cpu() ? cpu::gelu_tanh(context, x, out) : cuda::gelu_tanh(context, x, out);
}

}  // namespace kinora
