#include "ops/cosine.h"

#include "ops/checks.h"
#include "ops/cpu_kernels.h"
#include "ops/cuda_kernels.h"

namespace kinora {

void cosine_rows(const Context& context, ConstTensorView a, ConstTensorView b, TensorView out) {
  const OpChecks checks(context, "cosine_rows", {{"a", a}, {"b", b}, {"out", out}});
  checks.f32("a", a);
  checks.f32("b", b);
  checks.f32("out", out);
  checks.rank("a", a, 2, 2);
  checks.shape("b", b, a.shape());
  checks.shape("out", out, {a.size(0)});
  context.device.is_cpu() ? cpu::cosine_rows(context, a, b, out)
                          : cuda::cosine_rows(context, a, b, out);
}

}  // namespace kinora
