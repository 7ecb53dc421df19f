// Tokens on their way into the decoder, gathered from pieces of text and pictures. A row of text is
// an embedding; a visual row may have deep rows beside it (DeepStack). Used by the engine's
// prefill.
#pragma once

#include <cstdint>
#include <span>

#include "base/context.h"
#include "base/tensor.h"
#include "model/decoder/decoder.h"

namespace kinora {

// The rows of all pieces, one after the other, as the embeddings of `sequence`; of rows that are
// wider than `hidden`, the rest becomes its deep rows.
//   pieces  f32 [tokens, hidden] or [tokens, (1 + levels) × hidden], one number of levels for all
void set_input_rows(const Context& context, std::span<const Tensor> pieces, int64_t hidden,
                    Sequence& sequence);

}  // namespace kinora
