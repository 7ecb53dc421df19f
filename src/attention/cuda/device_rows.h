// What a memory reads, as the decode kernels want it (decode_cuda.h): row sets become entries of a
// table on the device. Used by captured steps and by whoever else calls those kernels.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/cuda/decode/decode_cuda.h"
#include "attention/row_mass.h"

namespace kinora {

// A sequence with `tokens` new tokens, whose own rows are the last of the last set.
DeviceSequence device_sequence(std::span<const RowSet> sets, int32_t first_token, int32_t tokens);

// The attention that the sequence gives its rows in this layer, one that was asked for, is added.
void ask_mass(const Context& context, int layer, std::span<const RowSet> sets, RowMass& mass,
              DeviceSequence& sequence);

// Which new tokens each of `count` tokens reads: itself and its ancestors. `parents` as in
// QueryView.
std::vector<uint64_t> token_masks(int64_t count, std::span<const int32_t> parents);

}  // namespace kinora
