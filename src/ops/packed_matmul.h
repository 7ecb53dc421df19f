// Products with packed weights on the CPU, behind matmul_parts. Used only in ops/.
#pragma once

#include <cstdint>
#include <span>

#include "base/context.h"
#include "ops/matmul_cpu.h"
#include "ops/packed_cpu.h"
#include "ops/packed_matrix.h"

namespace kinora::cpu {

// MatmulWork with `matrix` in place of its weight.
struct PackedWork {
  MatmulWork work;
  const PackedMatrix* matrix = nullptr;
};

// Products of the same rows. With `eight_bits` whole-number weights meet rows rounded to 8 bits per
// block of up to 128, and fp8 weights meet bf16 where the CPU has it; else the rows count as f32.
// `kernels` null means the best of this CPU; tests give others.
void packed_matmul(const Context& context, std::span<const PackedWork> products, bool eight_bits,
                   const PanelKernels* kernels = nullptr);

// Many rows of whole-number weights by AMX: rows as exact as f32, or rounded to 8 bits.
bool packed_amx_available();
void packed_amx(const Context& context, const PackedWork& product);
bool packed_amx_int8_available();
void packed_amx_int8(const Context& context, const PackedWork& product);

}  // namespace kinora::cpu
