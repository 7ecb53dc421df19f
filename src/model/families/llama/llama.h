// Llama 3 and later, text only.
#pragma once

#include "model/families/family.h"

namespace kinora {

inline constexpr DecoderTraits llama_decoder{};

const Family& llama_family();

}  // namespace kinora
