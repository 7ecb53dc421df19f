// The hidden rows of several sequences as one matrix, for the product that makes logits of them.
#pragma once

#include <span>

#include "model/decoder/decoder.h"

namespace kinora {

// The rows of all results without a failure, one after another. They are copied only if they do not
// already lie so in memory; otherwise the results must outlive what is given back.
class HiddenRows {
 public:
  HiddenRows(const Context& context, std::span<const Forwarded> results, int64_t width);

  int64_t count() const { return rows_.raw() == nullptr ? 0 : rows_.size(0); }
  ConstTensorView view() const { return rows_; }

 private:
  Tensor copied_;
  ConstTensorView rows_;
};

}  // namespace kinora
