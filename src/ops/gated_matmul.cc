#include "ops/activation.h"
#include "ops/checks.h"
#include "ops/cuda_kernels.h"
#include "ops/matmul.h"

namespace kinora {

void gated_matmul(const Context& context, ConstTensorView a, ConstTensorView weight, TensorView out,
                  ConstTensorView bias) {
  const OpChecks checks(context, "gated_matmul", {{"a", a}, {"weight", weight}, {"out", out}});
  checks.activation("a", a);
  checks.floating("weight", weight);
  checks.rank("a", a, 2, 2);
  checks.rank("weight", weight, 2, 2);
  checks.that(weight.size(0) % 2 == 0, "the weights hold two matrices of equal size");
  checks.that(
      a.dtype() == out.dtype() && (a.dtype() == DType::f32 || weight.dtype() == DType::bf16),
      "out has the type of a, and bf16 rows need bf16 weights");
  const int64_t n = weight.size(0) / 2;
  checks.shape("weight", weight, {2 * n, a.size(1)});
  checks.shape("out", out, {a.size(0), n});
  const bool biased = bias.raw() != nullptr;
  if (biased) {
    checks.floating("bias", bias);
    checks.shape("bias", bias, {2 * n});
  }
  if (!context.device.is_cpu()) return cuda::gated_matmul(context, a, weight, bias, out);
  Tensor up(DType::f32, out.shape());
  const auto half = [&](int64_t first) { return biased ? bias.rows(first, n) : bias; };
  const MatmulPart parts[] = {{weight.rows(0, n), half(0), out}, {weight.rows(n, n), half(n), up}};
  matmul_parts(context, a, parts);
  silu_mul(context, out, up, out);
}

bool gated_in_one_pass(const Context& context, ConstTensorView a, ConstTensorView weight,
                       TensorView out) {
  return !context.device.is_cpu() && cuda::gated_in_one_pass(context, a, weight, out);
}

}  // namespace kinora
