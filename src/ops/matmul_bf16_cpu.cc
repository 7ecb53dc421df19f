#include "ops/matmul_cpu.h"

namespace kinora::cpu {
bool bf16_instructions() { return false; }
void matmul_bf16(const Context& context, const MatmulWork& work) { matmul_blocked(context, work); }
}  // namespace kinora::cpu
