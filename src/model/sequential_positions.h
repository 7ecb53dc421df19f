// Positions of models that count tokens one by one, whatever they came from. Used by families
// without M-RoPE.
#pragma once

#include <memory>

#include "model/model.h"

namespace kinora {

std::unique_ptr<PositionCounter> sequential_positions();

}  // namespace kinora
