#include "ops/matmul.h"

#include <vector>

#include "ops/checks.h"
#include "ops/matmul_cpu.h"

namespace kinora {
namespace {

// Up to here, widening the weights in registers for every eight rows costs less than packing them.
constexpr int64_t few_rows = 20;

std::vector<float> widen(ConstTensorView x) {
  std::vector<float> values(static_cast<size_t>(x.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    switch (x.dtype()) {
      case DType::bf16:
        values[i] = x.data<bf16>()[i].to_float();
        break;
      case DType::f16:
        values[i] = x.data<f16>()[i].to_float();
        break;
      default:
        values[i] = x.data<float>()[i];
    }
  }
  return values;
}

}  // namespace

bool native_bf16_available() { return cpu::bf16_instructions(); }

void matmul(const Context& context, ConstTensorView a, ConstTensorView weight, TensorView out,
            const MatmulOptions& options) {
  const OpChecks checks(context, "matmul", {{"a", a}, {"weight", weight}, {"out", out}});
  checks.f32("a", a);
  checks.f32("out", out);
  checks.floating("weight", weight);
  checks.rank("a", a, 2, 2);
  checks.rank("weight", weight, 2, 2);
  cpu::MatmulWork work;
  work.m = a.size(0);
  work.k = a.size(1);
  work.n = weight.size(0);
  checks.shape("weight", weight, {work.n, work.k});
  checks.shape("out", out, {work.m, work.n});
  std::vector<float> bias;
  if (options.bias.raw() != nullptr) {
    checks.floating("bias", options.bias);
    checks.shape("bias", options.bias, {work.n});
    bias = widen(options.bias);
    work.bias = bias.data();
  }
  if (work.m == 0 || work.n == 0) return;

  work.a = a.data<float>();
  work.a_stride = a.stride(0);
  work.weight = weight.raw();
  work.weight_type = weight.dtype();
  work.weight_stride = weight.stride(0);
  work.out = out.data<float>();
  work.out_stride = out.stride(0);
  work.accumulate = options.accumulate;
  if (work.m <= few_rows) {
    cpu::matmul_rows(context, work);
  } else if (options.native_bf16 && weight.dtype() == DType::bf16 && native_bf16_available()) {
    cpu::matmul_bf16(context, work);
  } else {
    cpu::matmul_blocked(context, work);
  }
}

}  // namespace kinora
