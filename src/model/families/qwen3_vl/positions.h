// Positions of Qwen3-VL: in time, height and width, with time only in the text.
#pragma once

#include <memory>

#include "model/model.h"

namespace kinora {

// Text counts one by one in all three. Every unit begins where the next text token would stand: its
// tokens have that time, and add their row and column. What follows stands after the larger side.
std::unique_ptr<PositionCounter> unit_positions();

}  // namespace kinora
