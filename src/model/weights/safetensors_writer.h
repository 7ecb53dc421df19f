// Writing safetensors: models with random weights for tests and benches.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/tensor.h"

namespace kinora {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// The bytes of a file that holds these tensors, in this order. The header is padded so that the
// data begins at a multiple of 8.
std::string safetensors_bytes(const NamedTensors& tensors);

void write_safetensors(FileSystem& files, const std::string& path, const NamedTensors& tensors);

}  // namespace kinora
