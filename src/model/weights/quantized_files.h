// Weights of a model directory, whatever they are stored in: layers that were published in 8 or 4
// bits (fp8, compressed-tensors, awq, gptq) stay so where a product takes them (PackedMatrix, on
// the CPU) and are widened to 16 bits elsewhere, by the formulas of their references. What a file
// leaves in 16 bits stays as it is. Used by the families.
#pragma once

#include <string>

#include "base/context.h"
#include "base/file.h"
#include "model/config_files.h"
#include "model/weights/safetensors.h"

namespace kinora {

// The tensors under the names that a plain directory would have. Throws unsupported with the name
// of a scheme that kinora does not read, bad_input for packed tensors that do not fit together.
// `context` is used whenever a tensor is taken.
TensorFiles open_weights(const Context& context, const FileSystem& files,
                         const std::string& directory, const ConfigFiles& config);

// "fp8 in blocks of 128×128", "awq, 4 bits in groups of 128"; empty for plain weights.
std::string quantization_text(const ConfigFiles& config);

}  // namespace kinora
