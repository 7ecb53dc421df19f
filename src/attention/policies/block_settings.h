// Settings that all block-sparse policies share.
#pragma once

#include "attention/plan/block_plan.h"
#include "attention/policies/sparse_policy.h"

namespace kinora {

Settings<BlockLayout> block_layout_settings();

}  // namespace kinora
