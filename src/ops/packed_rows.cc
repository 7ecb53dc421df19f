#include "ops/packed_rows.h"

#include "ops/checks.h"
#include "ops/cpu_kernels.h"
#include "ops/cuda_kernels.h"
#include "ops/elementwise.h"

namespace kinora {

void store_rows(const Context& context, ConstTensorView x, TensorView out) {
  if (!rows_are_packed(out.dtype())) return convert(context, x, out);
  const OpChecks checks(context, "store_rows", {{"x", x}, {"out", out}});
  checks.activation("x", x);
  checks.rank("x", x, 3, 3);
  checks.shape("out", out, {x.size(0), x.size(1), stored_columns(out.dtype(), x.size(2))});
  context.device.is_cpu() ? cpu::pack_rows(context, x, out) : cuda::pack_rows(context, x, out);
}

void widen_rows(const Context& context, ConstTensorView rows, TensorView out) {
  if (!rows_are_packed(rows.dtype())) return convert(context, rows, out);
  const OpChecks checks(context, "widen_rows", {{"rows", rows}, {"out", out}});
  checks.activation("out", out);
  checks.rank("out", out, 3, 3);
  checks.shape("rows", rows, {out.size(0), out.size(1), stored_columns(rows.dtype(), out.size(2))});
  context.device.is_cpu() ? cpu::widen_rows(context, rows, out)
                          : cuda::widen_rows(context, rows, out);
}

ConstTensorView plain_rows(const Context& context, ConstTensorView rows, Tensor& room, DType wide) {
  if (!rows_are_packed(rows.dtype())) return rows;
  room = Tensor(wide, {rows.size(0), rows.size(1), head_size_of(rows)}, rows.device());
  widen_rows(context, rows, room);
  return room;
}

}  // namespace kinora
