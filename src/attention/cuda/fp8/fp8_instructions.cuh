// The instructions that only attention in FP8 uses: warpgroup products of e4m3, copies of
// contiguous bytes. Thin wrappers, one instruction each; sm_90a only.
#pragma once

#include "ops/hopper_instructions.cuh"

namespace kinora::fp8_attention {

// Contiguous bytes to shared memory, counted on a barrier. All of it in multiples of 16 bytes.
__device__ inline void copy_bytes(void* target, const void* source, uint32_t bytes,
                                  uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(hopper::shared_address(target)),
      "l"(source), "r"(bytes), "r"(hopper::shared_address(barrier))
      : "memory");
}

// Two numbers of a pair in e4m3, the first in the low byte; those beyond 448 become 448.
__device__ inline uint16_t pack_pair(float first, float second) {
  uint16_t packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(second), "f"(first));
  return packed;
}
__device__ inline uint32_t pack_four(float a, float b, float c, float d) {
  uint32_t packed;
  asm("mov.b32 %0, {%1, %2};" : "=r"(packed) : "h"(pack_pair(a, b)), "h"(pack_pair(c, d)));
  return packed;
}

// Descriptions of tiles in shared memory (fp8_layout.h). The upper half is the same for all, so
// that addresses are computed in 32 bits.
__device__ inline uint64_t describe(uint32_t low, uint32_t high) {
  uint64_t descriptor;
  asm("mov.b64 %0, {%1, %2};" : "=l"(descriptor) : "r"(low), "r"(high));
  return descriptor;
}
__device__ inline uint32_t low_descriptor(const void* tile) {
  return (hopper::shared_address(tile) & 0x3ffff) >> 4 | 1u << 16;
}
// Queries or keys: rows of 128 bytes, swizzled over 128 bytes.
__device__ inline uint64_t row_descriptor(const void* tile) {
  return describe(low_descriptor(tile), 1024u >> 4 | 1u << 30);
}
// A piece of values: rows of 32 bytes, swizzled over 32 bytes.
__device__ inline uint64_t value_descriptor(const void* piece) {
  return describe(low_descriptor(piece), 256u >> 4 | 3u << 30);
}

// d (+)= a · bᵀ: 64×128×32 in e4m3, both from shared memory, both with rows along k.
__device__ inline void mma_shared(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63])
      : "l"(a), "l"(b), "r"(accumulate));
}

// d (+)= a · bᵀ: 64×64×32, a from registers.
__device__ inline void mma_registers(float (&d)[32], const uint32_t* a, uint64_t b,
                                     int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

using hopper::mma_wait;

}  // namespace kinora::fp8_attention
