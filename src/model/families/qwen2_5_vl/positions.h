// Positions of Qwen2.5-VL: in time, height and width.
#pragma once

#include <memory>

#include "model/model.h"

namespace kinora {

// M-RoPE. Text counts one by one in all three. A visual item begins where the next text token would
// stand; its tokens add (time, row, column). What follows stands after the largest of all three.
std::unique_ptr<PositionCounter> multimodal_positions(double tokens_per_second);

}  // namespace kinora
