// From published packings to the one that stays in memory: the codes of a layer are brought into
// the order of PackedMatrix, its scales and zero points with them. Used by quantized_files.cc when
// a model is loaded.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/tensor.h"
#include "base/threads.h"
#include "model/weights/dequantize.h"
#include "ops/packed_matrix.h"

namespace kinora {

// Codes of rows [first, first + count) as a PackedMatrix has them.
using Codes = std::function<void(int64_t first, int64_t count, uint8_t* codes)>;

// The packings of dequantize.h.
Codes codes_of_bytes(const Tensor& weight);
Codes codes_of_packed_rows(const Tensor& packed, int bits, int64_t k);
Codes codes_of_packed_columns(const Tensor& packed, int bits, int64_t k);
Codes codes_of_awq(const Tensor& packed);

struct PackedLayer {
  PackedKind kind = PackedKind::int8;
  int64_t rows = 0, columns = 0;
  PartScales parts;
  bool transposed = false;  // scales and zeros are [groups, rows]
  float zero = 0;           // the code of 0 where a zero point is 0
  Codes codes;
};

// Whether the groups of a layer are such that it can stay packed: a multiple of 32 columns, in
// order.
bool can_stay_packed(const PackedLayer& layer);
std::shared_ptr<const PackedMatrix> pack_layer(const ThreadPool& threads, const PackedLayer& layer);

}  // namespace kinora
