// Tables of heads for benchmarks, without a search: each head is written BOUNDARY/PATTERN, such as
// "both/grid:stride=256". Used by the benches of attention and of whole models.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/policies/head_table.h"

namespace kinora::cli {

constexpr int32_t usual_frame_tokens = 256;  // a frame of 448 × 448 of Qwen's shapes

// Items to choose from: windows, grids, slashes and the strongest lines, each in several sizes,
// with strides that follow frames.
std::vector<std::string> mix_candidates(int64_t frame_tokens);

// Throws a usage error where an item of a mix makes no sense.
HeadChoice parse_mixed_head(const std::string& item, int32_t frame_stride);

// The heads of every layer take the items in turn, from the first on.
std::shared_ptr<const HeadTable> mixed_table(const TableShape& shape,
                                             std::span<const std::string> items,
                                             int32_t frame_stride);

}  // namespace kinora::cli
