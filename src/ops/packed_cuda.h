// The ways to multiply with packed weights on a GPU, chosen in packed_cuda.cu. Only .cu files
// include this.
#pragma once

#include "ops/cuda_kernels.h"
#include "ops/packed_strips.h"

namespace kinora::cuda {

// One pass over the packed bytes for up to eight rows, in fp8 two, on Hopper; takes no memory, so
// that it can stand in a captured graph. False, with nothing done, where it does not fit: rows
// whose length is no multiple of eight or that are not aligned to 16 bytes, groups of 64 columns in
// 4 bits.
bool packed_slices(const Context& context, const MatmulWork& work, const PackedStrips& weight,
                   const RowNorm& norm, int split);
// Passes over the packed bytes, each for sixteen rows. They take no memory, so that they can stand
// in a captured graph. Arguments as those of packed_matmul. False, with nothing done, where the
// columns are too many.
bool packed_few_rows(const Context& context, const MatmulWork& work, const PackedStrips& weight,
                     const RowNorm& norm, int split);
// One pass over the packed bytes for up to 64 rows, on Hopper. False, with nothing done, where it
// does not fit: groups or columns that are no multiples of 128, rows not aligned to 16 bytes.
bool packed_some_rows(const Context& context, const MatmulWork& work, const PackedStrips& weight,
                      int split);
// Whether packed_few_rows can norm the rows on the way.
bool packed_norm_fits(const MatmulWork& work, const RowNorm& norm);

// Many rows by fp8 weights on Hopper: the rows are rounded to e4m3 too, with a scale for 128
// columns or one for the row, as the weights have it. False, with nothing done, where that does not
// fit.
bool packed_by_fp8(const Context& context, const MatmulWork& work, const PackedStrips& weight);

}  // namespace kinora::cuda
