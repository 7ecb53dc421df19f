// The vector kernels of ops/resize_rows; each runs on the best instruction set of the machine, with
// the same integers on all of them. Used by ops/resize and, for packing pixels, by video/.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/resize_axis.h"

namespace kinora {

// rows[r] + 2p → out[p][r][2] for 16 rows and `pairs` pairs; writes whole blocks of 8 pairs.
void transpose_band(const uint8_t* rows, size_t row_stride, int pairs, uint8_t* out);

// in [x][16] → pair rows out[k × pair_stride + 2x + (0, 1)], k = 0 … 7; whole blocks of 8 x.
void untranspose_band(const uint8_t* in, int width, uint8_t* out, size_t pair_stride);

// out [x][16] = the horizontal filter over in [pair][16][2].
void filter_band(const ResizeAxis& axis, const uint8_t* in, uint8_t* out);

// out [x] = Σ over pairs of in[pair][x][2] × weights[pair][2], shifted; whole blocks of 16 x.
void filter_pairs(const uint8_t* const* in, const int16_t* weights, int pairs, int shift, int width,
                  uint8_t* out);

// Packed RGB pixels to three planes and back; `width` pixels exactly on the packed side.
void unpack_rgb(const uint8_t* packed, int width, uint8_t* red, uint8_t* green, uint8_t* blue);
void pack_rgb(const uint8_t* red, const uint8_t* green, const uint8_t* blue, int width,
              uint8_t* packed);

}  // namespace kinora
