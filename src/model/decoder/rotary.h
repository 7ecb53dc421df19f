// Rotary positions of a model: its frequencies, and tables for tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/context.h"
#include "memory/token_info.h"
#include "model/config.h"
#include "ops/rope.h"

namespace kinora {

// Of the d/2 columns of a head, with the scaling rule of the config.
std::vector<double> rotary_frequencies(const RopeConfig& rope, int64_t head_size);

// Which of a position's three numbers turns each column.
std::vector<int32_t> rotary_axes(const RopeConfig& rope, int64_t head_size);

RopeTable rotary_table(const Context& context, const RopeConfig& rope,
                       std::span<const double> frequencies, std::span<const Position> positions);

}  // namespace kinora
