// The type that a session keeps keys and values in, by the name a person gives it. Used by sessions
// and by what describes a model.
#pragma once

#include <string>
#include <vector>

#include "base/dtype.h"

namespace kinora {

struct EngineState;

const std::vector<std::string>& row_type_names();

// "exact": as computed, f32 unless products round to bf16. "auto": the type of the weights, or bf16
// where products round. "f32", "bf16" and "f16" are what they say, "int8" and "fp8" 8 bits with
// scales (ops/packed_rows.h). Throws a usage error for other names, and where the device does not
// have the type.
DType row_type_of(const EngineState& engine, const std::string& name);

}  // namespace kinora
