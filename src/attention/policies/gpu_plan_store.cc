#include "attention/policies/gpu_plan_store.h"

#include <algorithm>

namespace kinora {

// What the choice of a kernel depends on.
std::vector<int64_t> GpuPlanStore::layout_of(const QueryView& queries, const RowSet& rows,
                                             const ConstTensorView& out) {
  std::vector<int64_t> layout;
  for (const ConstTensorView* view : {&queries.queries, &rows.keys, &rows.values, &out}) {
    layout.push_back(static_cast<int64_t>(view->dtype()));
    layout.push_back(view->device().index);
    layout.push_back(static_cast<int64_t>(reinterpret_cast<uintptr_t>(view->raw()) % 16));
    for (int axis = 0; axis < 3; ++axis) layout.push_back(view->size(axis));
    for (int axis = 0; axis < 2; ++axis) layout.push_back(view->stride(axis));
  }
  layout.push_back(rows.weighted() ? 1 : 0);
  return layout;
}

const StoredGpuPlan* GpuPlanStore::find(int layer, const QueryView& queries, const RowSet& rows,
                                        const ConstTensorView& out) const {
  const bool same = plan_ && key_.layer == layer &&
                    std::ranges::equal(key_.query_ordinals, queries.ordinals) &&
                    std::ranges::equal(key_.row_ordinals, rows.ordinals) &&
                    std::ranges::equal(key_.query_modalities, queries.modalities) &&
                    std::ranges::equal(key_.row_modalities, rows.modalities) &&
                    key_.layout == layout_of(queries, rows, out);
  return same ? &*plan_ : nullptr;
}

const StoredGpuPlan& GpuPlanStore::put(int layer, const QueryView& queries, const RowSet& rows,
                                       const ConstTensorView& out, StoredGpuPlan plan) {
  const auto copy = [](auto& to, const auto& from) { to.assign(from.begin(), from.end()); };
  key_.layer = layer;
  copy(key_.query_ordinals, queries.ordinals);
  copy(key_.row_ordinals, rows.ordinals);
  copy(key_.query_modalities, queries.modalities);
  copy(key_.row_modalities, rows.modalities);
  key_.layout = layout_of(queries, rows, out);
  plan_ = std::move(plan);
  return *plan_;
}

}  // namespace kinora
