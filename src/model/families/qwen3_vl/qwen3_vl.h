// Qwen3-VL: visual tokens that also reach the decoder's first layers (DeepStack), positions in
// time, height and width, and the times of frames as text.
#pragma once

#include "model/families/family.h"

namespace kinora {

const Family& qwen3_vl_family();

}  // namespace kinora
