// LLaVA-OneVision and LLaVA-Video: SigLIP's patches through a projector, pooled for video, tiled
// for a picture, with a learnt newline token between rows, frames or videos.
#pragma once

#include "model/families/family.h"

namespace kinora {

const Family& llava_onevision_family();

}  // namespace kinora
