#include "ops/pool.h"

#include "ops/checks.h"
#include "ops/cpu_kernels.h"
#include "ops/cuda_kernels.h"

namespace kinora {
namespace {

OpChecks check_grids(const Context& context, std::string_view op, ConstTensorView x,
                     ConstTensorView out) {
  const OpChecks checks(context, op, {{"x", x}, {"out", out}});
  checks.activation("x", x);
  checks.activation("out", out);
  checks.rank("x", x, 3, 4);
  checks.rank("out", out, x.rank(), x.rank());
  checks.that(x.size(x.rank() - 1) == out.size(x.rank() - 1), "channels of x and out differ");
  checks.that(x.rank() == 3 || x.size(0) == out.size(0), "frames of x and out differ");
  return checks;
}

void check_windows(const OpChecks& checks, ConstTensorView x, int64_t window, ConstTensorView out) {
  checks.that(window >= 1, "the window must be at least 1");
  for (int axis = x.rank() - 3; axis < x.rank() - 1; ++axis) {
    checks.that(out.size(axis) == x.size(axis) / window,
                "out must have the height and width of x divided by the window");
  }
}

}  // namespace

void bilinear_pool(const Context& context, ConstTensorView x, TensorView out) {
  const OpChecks checks = check_grids(context, "bilinear_pool", x, out);
  checks.that(out.elements() == 0 || x.elements() > 0, "x is empty");
  context.device.is_cpu() ? cpu::bilinear_pool(context, x, out)
                          : cuda::bilinear_pool(context, x, out);
}

void average_pool(const Context& context, ConstTensorView x, int64_t window, TensorView out) {
  check_windows(check_grids(context, "average_pool", x, out), x, window, out);
  context.device.is_cpu() ? cpu::window_pool(context, x, window, cpu::PoolKind::average, out)
                          : cuda::window_pool(context, x, window, cpu::PoolKind::average, out);
}

void max_pool(const Context& context, ConstTensorView x, int64_t window, TensorView out) {
  check_windows(check_grids(context, "max_pool", x, out), x, window, out);
  context.device.is_cpu() ? cpu::window_pool(context, x, window, cpu::PoolKind::max, out)
                          : cuda::window_pool(context, x, window, cpu::PoolKind::max, out);
}

}  // namespace kinora
