// What `kinora bench model` measures on a machine without a GPU: a few layers of a shape, scaled to
// all of them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/context.h"
#include "ops/packed_matrix.h"

namespace kinora::cli {

// Decodes at these contexts and prefills these lengths; prints every figure as it comes if `text`.
nlohmann::json bench_cpu(const Context& context, const std::string& shape,
                         std::optional<PackedKind> weights, DType row_type, int64_t layers,
                         const std::vector<int64_t>& contexts, const std::vector<int64_t>& lengths,
                         bool text);

}  // namespace kinora::cli
