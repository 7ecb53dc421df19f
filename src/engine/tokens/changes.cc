#include "engine/tokens/changes.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "ops/cosine.h"
#include "ops/gather.h"

namespace kinora {

std::vector<float> Changes::next(const Context& context, ConstTensorView tokens, int64_t units) {
  const int64_t later = (units - 1) * unit_;
  Tensor alike = Tensor::zeros(DType::f32, {units * unit_}, context.device);
  const bool first = !before_.defined();
  if (!first) cosine_rows(context, tokens.rows(0, unit_), before_, alike.view().rows(0, unit_));
  if (later > 0) {
    cosine_rows(context, tokens.rows(unit_, later), tokens.rows(0, later),
                alike.view().rows(unit_, later));
  }
  before_ = copy_of(context, tokens.rows(later, unit_));
  std::vector<float> changes = one_minus(alike);
  if (first) std::fill_n(changes.begin(), unit_, std::numeric_limits<float>::infinity());
  return changes;
}

Tensor copy_of(const Context& context, ConstTensorView rows) {
  std::vector<int32_t> all(static_cast<size_t>(rows.size(0)));
  std::iota(all.begin(), all.end(), 0);
  Tensor copy(DType::f32, rows.shape(), context.device);
  gather_rows(context, rows, all, copy);
  return copy;
}

std::vector<float> one_minus(const Tensor& x) {
  const Tensor here = x.to(Device::cpu());
  std::vector<float> values(here.data<float>(), here.data<float>() + here.elements());
  for (float& value : values) value = 1 - value;
  return values;
}

}  // namespace kinora
