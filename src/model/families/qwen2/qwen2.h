// Qwen2 and Qwen2.5, text only. LLaVA-OneVision uses the same decoder.
#pragma once

#include "model/families/family.h"

namespace kinora {

inline constexpr DecoderTraits qwen2_decoder{
    .qkv_bias = true, .defaults = DecoderDefaults{4096, 32, 32, 32, 22016, 151936}};

const Family& qwen2_family();

}  // namespace kinora
