// Llama 3 and later, text only.
#pragma once

#include "model/families/family.h"

namespace kinora {

inline constexpr DecoderTraits llama_decoder{.defaults =
                                                 DecoderDefaults{4096, 32, 32, {}, 11008, 32000}};

const Family& llama_family();

}  // namespace kinora
