// Qwen2.5-VL: the vision tower's tokens among text, with positions in time, height and width.
#pragma once

#include "model/families/family.h"

namespace kinora {

const Family& qwen2_5_vl_family();

}  // namespace kinora
