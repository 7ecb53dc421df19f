// What every op checks of its arguments before it touches memory. An argument that does not fit is
// a defect of the caller (weights are checked against the architecture when they are loaded), so
// these throw internal errors that name the op, the argument and what was expected. Used only in
// ops/.
#pragma once

#include <initializer_list>
#include <string_view>

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

struct NamedView {
  std::string_view name;
  ConstTensorView view;
};

class OpChecks {
 public:
  // Throws when a view does not live on the context's device.
  OpChecks(const Context& context, std::string_view op, std::initializer_list<NamedView> views);

  void f32(std::string_view name, ConstTensorView view) const;
  void activation(std::string_view name, ConstTensorView view) const;  // f32; on GPUs bf16 too
  void floating(std::string_view name, ConstTensorView view) const;    // f32, bf16 or f16
  void shape(std::string_view name, ConstTensorView view, const Shape& expected) const;
  void rank(std::string_view name, ConstTensorView view, int low, int high) const;
  void that(bool holds, std::string_view what) const;

 private:
  std::string_view op_;
  bool cpu_;
};

}  // namespace kinora
