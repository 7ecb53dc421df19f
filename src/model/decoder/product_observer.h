// Looks on at what enters the products of a decoder's layers. `kinora quantize` learns so which
// inputs matter; on the CPU only.
#pragma once

#include "base/tensor.h"

namespace kinora {

enum class Product { qkv, output, gate_up, down };

class ProductObserver {
 public:
  virtual ~ProductObserver() = default;
  // rows [tokens, inputs] f32, before they are multiplied.
  virtual void look(int layer, Product product, ConstTensorView rows) = 0;
};

}  // namespace kinora
