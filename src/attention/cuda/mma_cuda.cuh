// The instructions that attention on any card from sm_80 on is made of: matrix products of a warp,
// matrix loads from shared memory, and copies that do not wait. Tiles of bf16 in shared memory have
// rows of a power of two of 16-byte pieces, swizzled so that loads of eight rows meet no bank
// twice.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace kinora::cuda_attention {

constexpr float log2_e = 1.44269504088896f;

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Within an ulp, and without the code for numbers that are not normal.
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ inline uint32_t address_of(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes to shared memory, zeros where `bytes` is 0.
__device__ inline void copy_piece(uint32_t target, const void* source, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
               "r"(bytes)
               : "memory");
}
// The same for pieces of 4 or 8 bytes. They pass through the multiprocessor's own cache: what
// another kernel still writes must not lie in a line of 128 bytes that this one has read before.
template <int Bytes>
__device__ inline void copy_small_piece(uint32_t target, const void* source, uint32_t bytes) {
  static_assert(Bytes == 4 || Bytes == 8);
  asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;" ::"r"(target), "l"(source),
               "n"(Bytes), "r"(bytes)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Left>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
}

// Four 8×8 matrices; lane i gives the address of row i % 8 of matrix i / 8.
__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Two rows of a matrix of 8 × 8 become two columns.
__device__ inline uint32_t transposed(uint32_t rows) {
  uint32_t columns;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(columns) : "r"(rows));
  return columns;
}

// d += a · b: 16×8×16
__device__ inline void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Byte offset of a 16-byte piece in a tile whose rows have `Pieces` of them.
template <int Pieces>
__device__ inline uint32_t piece_offset(int row, int piece) {
  static_assert(Pieces >= 8, "narrower rows need another swizzle");
  return static_cast<uint32_t>((row * Pieces + (piece ^ (row & 7))) * 16);
}

// 16 rows of a bf16 tile as the left operand of products: k steps of 16 columns.
template <int Pieces>
__device__ inline void load_left(uint32_t (&a)[4], uint32_t tile, int first_row, int step,
                                 int lane) {
  load_matrices(a, tile + piece_offset<Pieces>(first_row + (lane & 15), step * 2 + (lane >> 4)));
}

// scores[2 × 8 keys] += q · kᵀ over 16 columns
template <int Pieces>
__device__ inline void multiply_keys16(float (&left)[4], float (&right)[4], const uint32_t (&q)[4],
                                       uint32_t tile, int first_key, int step, int lane) {
  uint32_t b[4];
  load_matrices(b, tile + piece_offset<Pieces>(first_key + (lane & 7) + ((lane >> 4) << 3),
                                               step * 2 + ((lane >> 3) & 1)));
  multiply_add(left, q, b[0], b[1]);
  multiply_add(right, q, b[2], b[3]);
}

// out[2 × 8 columns] += p · v over 16 keys
template <int Pieces>
__device__ inline void multiply_values16(float (&left)[4], float (&right)[4],
                                         const uint32_t (&p)[4], uint32_t tile, int first_key,
                                         int column_pair, int lane) {
  uint32_t b[4];
  load_matrices_transposed(
      b, tile + piece_offset<Pieces>(first_key + (lane & 15), column_pair * 2 + (lane >> 4)));
  multiply_add(left, p, b[0], b[1]);
  multiply_add(right, p, b[2], b[3]);
}

}  // namespace kinora::cuda_attention
