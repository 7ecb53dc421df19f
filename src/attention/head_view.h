// One head of an attention problem as a problem of its own, without copying: for the search and for
// pictures.
#pragma once

#include "attention/attention.h"

namespace kinora {

// queries [count, 1, d], rows [rows, 1, d]
struct HeadViews {
  QueryView queries;
  RowSet rows;
};

inline HeadViews view_head(const QueryView& queries, const RowSet& rows, int head) {
  const ConstTensorView& q = queries.queries;
  const int64_t kv_head = head / (q.size(1) / rows.keys.size(1));
  const auto cut = [](const ConstTensorView& view, int64_t at) {
    return ConstTensorView(view.raw() + at * view.stride(1) * dtype_size(view.dtype()),
                           view.dtype(), {view.size(0), 1, view.size(2)},
                           {view.stride(0), view.stride(1), 1}, view.device());
  };
  return {{cut(q, head), queries.ordinals, queries.modalities},
          {cut(rows.keys, kv_head), cut(rows.values, kv_head), rows.ordinals, rows.modalities}};
}

}  // namespace kinora
