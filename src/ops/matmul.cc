#include "ops/matmul.h"

#include <vector>

#include "ops/checks.h"
#include "ops/cuda_kernels.h"
#include "ops/matmul_cpu.h"
#include "ops/packed_matmul.h"

namespace kinora {
namespace {

// Up to here, widening the weights in registers for every eight rows costs less than packing them,
// and what decodes one row and what decodes several rounds alike: drafts change no answer.
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

namespace {

// One product with its arguments checked, and the bias it reads.
struct Checked {
  cpu::MatmulWork work;
  const PackedMatrix* packed = nullptr;
  std::vector<float> bias;
};

void check(const Context& context, ConstTensorView a, const MatmulPart& part, bool accumulate,
           Checked& checked) {
  const OpChecks checks(context, "matmul", {{"a", a}, {"weight", part.weight}, {"out", part.out}});
  checks.f32("a", a);
  checks.f32("out", part.out);
  checks.rank("a", a, 2, 2);
  cpu::MatmulWork& work = checked.work;
  work.m = a.size(0);
  work.k = a.size(1);
  checked.packed = part.packed;
  if (part.packed != nullptr) {
    work.n = part.packed->rows();
    checks.that(part.packed->columns() == work.k, "the packed weight has as many columns as a");
  } else {
    checks.floating("weight", part.weight);
    checks.rank("weight", part.weight, 2, 2);
    work.n = part.weight.size(0);
    checks.shape("weight", part.weight, {work.n, work.k});
    work.weight = part.weight.raw();
    work.weight_type = part.weight.dtype();
    work.weight_stride = part.weight.stride(0);
  }
  checks.shape("out", part.out, {work.m, work.n});
  if (part.bias.raw() != nullptr) {
    checks.floating("bias", part.bias);
    checks.shape("bias", part.bias, {work.n});
    checked.bias = widen(part.bias);
    work.bias = checked.bias.data();
  }
  work.a = a.data<float>();
  work.a_stride = a.stride(0);
  work.out = part.out.data<float>();
  work.out_stride = part.out.stride(0);
  work.accumulate = accumulate;
}

void matmul_on_gpu(const Context& context, ConstTensorView a, const MatmulPart& part,
                   bool accumulate) {
  const OpChecks checks(context, "matmul", {{"a", a}, {"weight", part.weight}, {"out", part.out}});
  checks.activation("a", a);
  checks.activation("out", part.out);
  checks.floating("weight", part.weight);
  checks.that(
      a.dtype() == DType::f32 ? part.out.dtype() == DType::f32 : part.weight.dtype() == DType::bf16,
      "bf16 rows need bf16 weights, f32 rows give f32");
  checks.rank("a", a, 2, 2);
  checks.rank("weight", part.weight, 2, 2);
  checks.shape("weight", part.weight, {part.weight.size(0), a.size(1)});
  checks.shape("out", part.out, {a.size(0), part.weight.size(0)});
  if (part.bias.raw() != nullptr) {
    checks.floating("bias", part.bias);
    checks.shape("bias", part.bias, {part.weight.size(0)});
  }
  cuda::matmul(context, {a, part.weight, part.bias, part.out, accumulate});
}

// Products of the same rows.
void run(const Context& context, std::span<const Checked> products, bool native_bf16) {
  std::vector<cpu::MatmulWork> short_ones, rounded_ones, exact_ones;
  std::vector<cpu::PackedWork> packed_ones;
  const cpu::Bf16Product* narrow = cpu::best_bf16_product();
  for (const Checked& product : products) {
    const cpu::MatmulWork& work = product.work;
    if (work.m == 0 || work.n == 0) continue;
    const bool can_be_narrow = narrow != nullptr && work.weight_type == DType::bf16;
    if (product.packed != nullptr) {
      packed_ones.push_back({work, product.packed});
    } else if (can_be_narrow && native_bf16 && work.m > few_rows) {
      rounded_ones.push_back(work);
    } else if (can_be_narrow && narrow->exact_rows_from > 0 && work.m >= narrow->exact_rows_from) {
      exact_ones.push_back(work);
    } else if (work.m <= few_rows) {
      short_ones.push_back(work);
    } else {
      cpu::matmul_blocked(context, work);
    }
  }
  if (!rounded_ones.empty()) narrow->run(context, rounded_ones, false);
  if (!exact_ones.empty()) narrow->run(context, exact_ones, true);
  if (!short_ones.empty()) cpu::matmul_rows(context, short_ones);
  if (!packed_ones.empty()) cpu::packed_matmul(context, packed_ones, native_bf16);
}

}  // namespace

void matmul(const Context& context, ConstTensorView a, ConstTensorView weight, TensorView out,
            const MatmulOptions& options) {
  if (!context.device.is_cpu()) {
    return matmul_on_gpu(context, a, {weight, options.bias, out}, options.accumulate);
  }
  Checked product;
  check(context, a, {weight, options.bias, out}, options.accumulate, product);
  run(context, {&product, 1}, options.native_bf16);
}

void matmul(const Context& context, ConstTensorView a, const PackedMatrix& weight, TensorView out,
            const MatmulOptions& options) {
  Checked product;
  check(context, a, {{}, options.bias, out, &weight}, options.accumulate, product);
  run(context, {&product, 1}, options.native_bf16);
}

void matmul_parts(const Context& context, ConstTensorView a, std::span<const MatmulPart> parts,
                  bool native_bf16) {
  if (!context.device.is_cpu()) {
    for (const MatmulPart& part : parts) matmul_on_gpu(context, a, part, false);
    return;
  }
  std::vector<Checked> products(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) check(context, a, parts[i], false, products[i]);
  run(context, products, native_bf16);
}

}  // namespace kinora
