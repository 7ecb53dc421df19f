#include "model/decoder/input_rows.h"

#include "base/error.h"
#include "ops/elementwise.h"

namespace kinora {

void set_input_rows(const Context& context, std::span<const Tensor> pieces, int64_t hidden,
                    Sequence& sequence) {
  int64_t rows = 0, deep_count = 0, deep_width = 0;
  for (const Tensor& piece : pieces) {
    const int64_t beyond = piece.size(1) - hidden;
    rows += piece.size(0);
    if (beyond == 0) continue;
    if (beyond < 0 || (deep_width > 0 && beyond != deep_width)) {
      throw Error(ErrorKind::internal, "rows for the decoder differ in width");
    }
    deep_width = beyond;
    deep_count += piece.size(0);
  }
  sequence.deep = {};
  if (pieces.size() == 1 && deep_count == 0) {
    sequence.embeddings = pieces[0];
    return;
  }
  sequence.embeddings = Tensor(DType::f32, {rows, hidden}, context.device);
  if (deep_count > 0) {
    sequence.deep.values = Tensor(DType::f32, {deep_count, deep_width}, context.device);
  }
  int64_t row = 0;
  for (const Tensor& piece : pieces) {
    const int64_t count = piece.size(0);
    const Tensor there = piece.to(context.device);
    if (count == 0) continue;
    convert(context, there.view().columns(0, hidden), sequence.embeddings.view().rows(row, count));
    if (piece.size(1) > hidden) {
      const auto first = static_cast<int64_t>(sequence.deep.tokens.size());
      convert(context, there.view().columns(hidden, deep_width),
              sequence.deep.values.view().rows(first, count));
      for (int64_t i = 0; i < count; ++i) {
        sequence.deep.tokens.push_back(static_cast<int32_t>(row + i));
      }
    }
    row += count;
  }
}

}  // namespace kinora
