#include "ops/norm_matmul.h"

#include "ops/checks.h"
#include "ops/cuda_kernels.h"
#include "ops/matmul.h"
#include "ops/rms_norm.h"

namespace kinora {
namespace {

void check(const Context& context, std::string_view op, const NormedRows& rows,
           ConstTensorView weight, ConstTensorView bias, ConstTensorView out, bool gated) {
  const OpChecks checks(
      context, op,
      {{"x", rows.x}, {"norm", rows.norm}, {"room", rows.room}, {"weight", weight}, {"out", out}});
  checks.f32("x", rows.x);
  checks.rank("x", rows.x, 2, 2);
  checks.rank("weight", weight, 2, 2);
  checks.activation("room", rows.room);
  checks.activation("out", out);
  checks.floating("norm", rows.norm);
  checks.floating("weight", weight);
  checks.shape("norm", rows.norm, {rows.x.size(1)});
  checks.shape("room", rows.room, rows.x.shape());
  const int64_t n = weight.size(0);
  checks.shape("weight", weight, {n, rows.x.size(1)});
  checks.shape("out", out, {rows.x.size(0), gated ? n / 2 : n});
  if (bias.raw() != nullptr) checks.shape("bias", bias, {n});
}

// Whether the GPU did it in one pass.
bool in_one_pass(const Context& context, const NormedRows& rows, ConstTensorView weight,
                 ConstTensorView bias, TensorView out, bool gated) {
  return !context.device.is_cpu() && rows.room.dtype() == DType::bf16 &&
         cuda::norm_matmul(context, {rows.x, weight, bias, out, false}, rows.norm, rows.epsilon,
                           gated);
}

}  // namespace

void norm_matmul(const Context& context, const NormedRows& rows, ConstTensorView weight,
                 ConstTensorView bias, TensorView out) {
  check(context, "norm_matmul", rows, weight, bias, out, false);
  if (in_one_pass(context, rows, weight, bias, out, false)) return;
  rms_norm(context, rows.x, rows.norm, rows.epsilon, rows.room);
  MatmulOptions options;
  options.bias = bias;
  matmul(context, rows.room, weight, out, options);
}

void norm_gated_matmul(const Context& context, const NormedRows& rows, ConstTensorView weight,
                       ConstTensorView bias, TensorView out) {
  check(context, "norm_gated_matmul", rows, weight, bias, out, true);
  if (in_one_pass(context, rows, weight, bias, out, true)) return;
  rms_norm(context, rows.x, rows.norm, rows.epsilon, rows.room);
  gated_matmul(context, rows.room, weight, out, bias);
}

}  // namespace kinora
