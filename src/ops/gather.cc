#include "ops/gather.h"

#include <string>

#include "base/error.h"
#include "ops/checks.h"
#include "ops/cpu_kernels.h"
#include "ops/cuda_kernels.h"

namespace kinora {
namespace {

void check_rows(std::string_view op, std::span<const int32_t> rows, int64_t count) {
  for (const int32_t row : rows) {
    if (row < 0 || row >= count) {
      throw Error(ErrorKind::internal, std::string(op) + ": row " + std::to_string(row) +
                                           " is outside a table of " + std::to_string(count) +
                                           " rows");
    }
  }
}

}  // namespace

void gather_rows(const Context& context, ConstTensorView table, std::span<const int32_t> rows,
                 TensorView out) {
  const OpChecks checks(context, "gather_rows", {{"table", table}, {"out", out}});
  checks.floating("table", table);
  checks.activation("out", out);
  checks.rank("table", table, 2, 2);
  checks.shape("out", out, {static_cast<int64_t>(rows.size()), table.size(1)});
  check_rows("gather_rows", rows, table.size(0));
  context.device.is_cpu() ? cpu::gather_rows(context, table, rows, out)
                          : cuda::gather_rows(context, table, rows, out);
}

void scatter_rows(const Context& context, ConstTensorView x, std::span<const int32_t> rows,
                  TensorView out) {
  const OpChecks checks(context, "scatter_rows", {{"x", x}, {"out", out}});
  checks.activation("x", x);
  checks.activation("out", out);
  checks.rank("out", out, 2, 2);
  checks.shape("x", x, {static_cast<int64_t>(rows.size()), out.size(1)});
  check_rows("scatter_rows", rows, out.size(0));
  context.device.is_cpu() ? cpu::scatter_rows(context, x, rows, out)
                          : cuda::scatter_rows(context, x, rows, out);
}

void add_rows(const Context& context, ConstTensorView x, std::span<const int32_t> rows,
              TensorView out) {
  const OpChecks checks(context, "add_rows", {{"x", x}, {"out", out}});
  checks.f32("x", x);
  checks.f32("out", out);
  checks.rank("out", out, 2, 2);
  checks.shape("x", x, {static_cast<int64_t>(rows.size()), out.size(1)});
  check_rows("add_rows", rows, out.size(0));
  context.device.is_cpu() ? cpu::add_rows(context, x, rows, out)
                          : cuda::add_rows(context, x, rows, out);
}

}  // namespace kinora
