#include "ops/checks.h"

#include <string>

#include "base/error.h"

namespace kinora {
namespace {

[[noreturn]] void fail(std::string_view op, std::string_view name, const std::string& what) {
  throw Error(ErrorKind::internal, std::string(op) + ": " + std::string(name) + " " + what);
}

}  // namespace

OpChecks::OpChecks(const Context& context, std::string_view op,
                   std::initializer_list<NamedView> views)
    : op_(op), cpu_(context.device.is_cpu()) {
  for (const NamedView& named : views) {
    if (named.view.device() != context.device) {
      fail(op_, named.name,
           "is on " + to_string(named.view.device()) + ", but the op runs on " +
               to_string(context.device));
    }
  }
}

void OpChecks::f32(std::string_view name, ConstTensorView view) const {
  if (view.dtype() != DType::f32) {
    fail(op_, name, "must be f32, not " + std::string(dtype_name(view.dtype())));
  }
}

void OpChecks::activation(std::string_view name, ConstTensorView view) const {
  if (cpu_ || view.dtype() != DType::bf16) f32(name, view);
}

void OpChecks::floating(std::string_view name, ConstTensorView view) const {
  const DType type = view.dtype();
  if (type != DType::f32 && type != DType::bf16 && type != DType::f16) {
    fail(op_, name, "must be f32, bf16 or f16, not " + std::string(dtype_name(type)));
  }
}

void OpChecks::shape(std::string_view name, ConstTensorView view, const Shape& expected) const {
  if (view.shape() != expected) {
    fail(op_, name, "has shape " + to_string(view.shape()) + ", expected " + to_string(expected));
  }
}

void OpChecks::rank(std::string_view name, ConstTensorView view, int low, int high) const {
  if (view.rank() < low || view.rank() > high) {
    fail(op_, name,
         "has shape " + to_string(view.shape()) + ", expected " + std::to_string(low) +
             (low == high ? "" : " to " + std::to_string(high)) + " dimensions");
  }
}

void OpChecks::that(bool holds, std::string_view what) const {
  if (!holds) throw Error(ErrorKind::internal, std::string(op_) + ": " + std::string(what));
}

}  // namespace kinora
