// Rows as the kernels that run plans on a GPU read them. Rows of 8 bits are widened to bf16 for as
// long as this lives: a layer's rows take 16-bit room once more while they are attended. Every way
// into attention on a GPU but decoding (decode/) goes through this; plans then see bf16 rows too.
// Private to attention/.
#pragma once

#include "attention/attention.h"
#include "base/context.h"
#include "ops/packed_rows.h"

namespace kinora {

class WideRows {
 public:
  // Starts the work; the host does not wait.
  WideRows(const Context& context, const RowSet& rows) : rows_(rows) {
    if (context.device.is_cpu()) return;
    rows_.keys = plain_rows(context, rows.keys, keys_, DType::bf16);
    rows_.values = plain_rows(context, rows.values, values_, DType::bf16);
  }
  WideRows(const WideRows&) = delete;
  WideRows& operator=(const WideRows&) = delete;

  const RowSet& rows() const { return rows_; }

 private:
  Tensor keys_, values_;
  RowSet rows_;
};

}  // namespace kinora
