// Qwen3, text only: an independent head size, normalised queries and keys, and answers that may
// begin with a thought.
#pragma once

#include "model/families/family.h"

namespace kinora {

inline constexpr DecoderTraits qwen3_decoder{
    .qk_norm = true,
    .head_size = 128,
    .defaults = DecoderDefaults{4096, 32, 32, 32, 22016, 151936}};

const Family& qwen3_family();

}  // namespace kinora
