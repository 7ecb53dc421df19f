#include "ops/activation.h"

#include "ops/checks.h"
#include "ops/cpu_kernels.h"

namespace kinora {
namespace {

void check_unary(const Context& context, std::string_view op, ConstTensorView x,
                 ConstTensorView out) {
  const OpChecks checks(context, op, {{"x", x}, {"out", out}});
  checks.f32("x", x);
  checks.f32("out", out);
  checks.shape("out", out, x.shape());
}

}  // namespace

void silu(const Context& context, ConstTensorView x, TensorView out) {
  check_unary(context, "silu", x, out);
  cpu::silu(context, x, out);
}

void silu_mul(const Context& context, ConstTensorView gate, ConstTensorView up, TensorView out) {
  const OpChecks checks(context, "silu_mul", {{"gate", gate}, {"up", up}, {"out", out}});
  checks.f32("gate", gate);
  checks.f32("up", up);
  checks.f32("out", out);
  checks.shape("up", up, gate.shape());
  checks.shape("out", out, gate.shape());
  cpu::silu_mul(context, gate, up, out);
}

void gelu_erf(const Context& context, ConstTensorView x, TensorView out) {
  check_unary(context, "gelu_erf", x, out);
  cpu::gelu_erf(context, x, out);
}

void gelu_tanh(const Context& context, ConstTensorView x, TensorView out) {
  check_unary(context, "gelu_tanh", x, out);
  cpu::gelu_tanh(context, x, out);
}

}  // namespace kinora
