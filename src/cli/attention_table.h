// How attention tables tell models apart.
#pragma once

#include "attention/policies/head_table.h"
#include "model/model.h"

namespace kinora::cli {

// Of the loaded model; the number of query heads is left open (0).
TableShape attention_table_shape(const ModelInfo& info);

}  // namespace kinora::cli
