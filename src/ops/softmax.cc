#include "ops/softmax.h"

#include "ops/checks.h"
#include "ops/cpu_kernels.h"

namespace kinora {

void softmax(const Context& context, ConstTensorView x, TensorView out, float scale) {
  const OpChecks checks(context, "softmax", {{"x", x}, {"out", out}});
  checks.f32("x", x);
  checks.f32("out", out);
  checks.rank("x", x, 1, Shape::max_rank);
  checks.shape("out", out, x.shape());
  checks.that(scale > 0, "the scale must be positive");
  cpu::softmax(context, x, out, scale);
}

}  // namespace kinora
