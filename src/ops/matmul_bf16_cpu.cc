#include <vector>

#include "ops/matmul_cpu.h"

namespace kinora::cpu {

std::span<const Bf16Product* const> bf16_products() {
  static const std::vector<const Bf16Product*> products = [] {
    std::vector<const Bf16Product*> there;
    for (const Bf16Product* product :
         {arm_bf16_product(), amx_bf16_product(), avx512_bf16_product()}) {
      if (product != nullptr) there.push_back(product);
    }
    return there;
  }();
  return products;
}

const Bf16Product* best_bf16_product() {
  for (const Bf16Product* product : bf16_products()) {
    if (product->pays) return product;
  }
  return nullptr;
}

bool bf16_instructions() { return best_bf16_product() != nullptr; }

void matmul_bf16(const Context& context, const MatmulWork& work) {
  best_bf16_product()->run(context, {&work, 1}, false);
}

}  // namespace kinora::cpu
