// A model of any size without its files: the shape is given, the weights are random, and the
// tokenizer, the chat template and the processor are those of a small model of the same family.
// Benchmarks run whole sessions with it.
#pragma once

#include <memory>
#include <string>

#include "base/context.h"
#include "base/file.h"
#include "model/config_files.h"
#include "model/model.h"

namespace kinora {

// `shape` is the config of the model to make, `directory` holds a model of the same family, whose
// weights are not read. `name` is what messages call the model. bf16 weights, made on the context's
// device. Throws unsupported for a family that cannot make random weights for a whole model.
std::unique_ptr<Model> random_model(const Context& context, const FileSystem& files,
                                    const std::string& directory, const std::string& name,
                                    const ConfigFiles& shape);

}  // namespace kinora
