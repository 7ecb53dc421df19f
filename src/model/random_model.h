// A model of any size without its files: the shape is given, the weights are random, and the
// tokenizer, the chat template and the processor are those of a small model of the same family.
// Benchmarks run whole sessions with it.
#pragma once

#include <memory>
#include <string>

#include "model/config.h"
#include "model/model.h"

namespace kinora {

// `directory` holds a model of the same family, Qwen2.5-VL so far; its own weights are not read.
// `name` is what messages call the model. bf16 weights, made on the context's device.
std::unique_ptr<Model> random_model(const Context& context, const FileSystem& files,
                                    const std::string& directory, const std::string& name,
                                    const ModelConfig& shape);

}  // namespace kinora
