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

// What one token batch reads in one layer, told twice: whole, and with rows that several sequences
// read alike taken out and put into groups (SharedRows).
struct SharedTables {
  std::vector<DeviceSequence> rest;    // [sequences]
  std::vector<DeviceSequence> groups;  // only those of two sequences or more
};

// Where the rows of the first set begin, if others may read them too: plain ones, many, none of
// them new. Else null.
const void* shareable_rows(const DeviceSequence& sequence);

// Which sequences share rows: they stand side by side, and their first set begins at one address in
// every layer. `layers` are the sequences of each layer, in the order of their tokens; a run is
// [first, first + count).
struct SharedRun {
  size_t first = 0;
  size_t count = 0;
};
std::vector<SharedRun> shared_runs(std::span<const std::vector<DeviceSequence>> layers);

// Takes what the runs share out of one layer's sequences. `row_bytes` are those of all kv heads.
SharedTables share_rows(std::span<const DeviceSequence> sequences, std::span<const SharedRun> runs,
                        int64_t row_bytes);

// The attention that the sequence gives its rows in this layer, one that was asked for, is added.
void ask_mass(const Context& context, int layer, std::span<const RowSet> sets, RowMass& mass,
              DeviceSequence& sequence);

// Which new tokens each of `count` tokens reads: itself and its ancestors. `parents` as in
// QueryView.
std::vector<uint64_t> token_masks(int64_t count, std::span<const int32_t> parents);

}  // namespace kinora
