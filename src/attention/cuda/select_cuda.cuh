// The largest of many numbers, by one block of threads: digit by digit from the top, then all above
// the last one found and the first of those equal to it. Of few numbers by bisection.
#pragma once

#include <cstdint>

#include "attention/cuda/scan_cuda.cuh"

namespace kinora::cuda_attention {

// A bound that at least `wanted` of some numbers reach: the largest there is that has no bit below
// `least_bit`, or a lower one that just so many reach. 0 where there are fewer. reach(bound) says
// how many are at least `bound`, the same to all threads that ask.
template <class Reach>
__device__ inline uint32_t bound_of_largest(int32_t wanted, uint32_t least_bit,
                                            const Reach& reach) {
  uint32_t bound = 0;
  for (uint32_t bit = 1u << 31; bit >= least_bit; bit >>= 1) {
    const int32_t found = reach(bound | bit);
    if (found >= wanted) bound |= bit;
    if (found == wanted) break;
  }
  return bound;
}

struct SelectRoom {
  static constexpr int digit_bits = 11;
  uint32_t histogram[1 << digit_bits];
  uint32_t digit, left;
  int32_t scratch[33];
};

// Calls take(place, i) for the `wanted` largest of order(0) … order(size − 1), places counting from
// 0 in the order of i; the earlier of equals is taken, an order of 0 never unless `zeros`. All
// threads of the block call it; returns how many were taken. At most 1024 threads, whole warps.
template <class Order, class Take>
__device__ int32_t select_largest(int32_t size, int32_t wanted, bool zeros, SelectRoom& room,
                                  const Order& order, const Take& take) {
  constexpr int digits = 1 << SelectRoom::digit_bits;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int lane = thread % 32;
  uint32_t left = static_cast<uint32_t>(max(0, min(wanted, size)));
  const bool some = left > 0;
  uint32_t prefix = 0;
  for (int shift = 32; shift > 0 && left > 0;) {
    const int bits = min(SelectRoom::digit_bits, shift);
    const uint32_t known = shift == 32 ? 0 : 0xffffffffu << shift;
    shift -= bits;
    for (int i = thread; i < digits; i += threads) room.histogram[i] = 0;
    __syncthreads();
    for (int32_t first = 0; first < size; first += threads) {
      const int32_t i = first + thread;
      const uint32_t own = i < size ? order(i) : 0;
      const bool counts = i < size && (own & known) == prefix;
      const uint32_t digit = own >> shift & ((1u << bits) - 1);
      // Neighbours share their upper digits: one addition for all lanes with the same one.
      const unsigned int peers = __match_any_sync(0xffffffffu, counts ? digit : digits);
      if (counts && lane == __ffs(static_cast<int>(peers)) - 1) {
        atomicAdd(&room.histogram[digit], static_cast<uint32_t>(__popc(peers)));
      }
    }
    __syncthreads();
    // Each thread has some neighbouring digits, the first thread the largest; the one whose
    // digits complete the number that is wanted tells all.
    const int each = ((1 << bits) + threads - 1) / threads;
    const int top = (1 << bits) - 1 - thread * each;
    int32_t own = 0, total = 0;
    for (int digit = top; digit > top - each && digit >= 0; --digit) {
      own += static_cast<int32_t>(room.histogram[digit]);
    }
    const int32_t above = exclusive_scan(own, room.scratch, total);
    if (above < static_cast<int32_t>(left) && above + own >= static_cast<int32_t>(left)) {
      uint32_t rest = left - static_cast<uint32_t>(above);
      int digit = top;
      while (room.histogram[digit] < rest) rest -= room.histogram[digit--];
      room.digit = static_cast<uint32_t>(digit);
      room.left = rest;
    }
    __syncthreads();
    prefix |= room.digit << shift;
    left = room.left;
    __syncthreads();
  }
  int32_t taken = 0, equal_taken = 0;
  for (int32_t first = 0; some && first < size; first += threads) {
    const int32_t i = first + thread;
    const uint32_t own = i < size ? order(i) : 0;
    const bool equal = i < size && own == prefix && (zeros || own != 0);
    int32_t equal_total = 0, total = 0;
    const int32_t equal_before =
        equal_taken + exclusive_scan(equal ? 1 : 0, room.scratch, equal_total);
    const bool takes =
        (i < size && own > prefix) || (equal && equal_before < static_cast<int32_t>(left));
    const int32_t place = taken + exclusive_scan(takes ? 1 : 0, room.scratch, total);
    if (takes) take(place, i);
    taken += total;
    equal_taken += equal_total;
  }
  return taken;
}

}  // namespace kinora::cuda_attention
