// AWQ's scaling (arXiv 2306.00978): inputs that are large are multiplied up in the weights before
// these are rounded, and divided in what makes them: the norm before queries, keys, values, gate
// and up; the rows of up before down. The model computes the same, and rounding hurts it less.
// Used by quantize_directory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/threads.h"
#include "model/quantize/compensation.h"
#include "model/quantize/input_sample.h"
#include "model/quantize/rounding.h"
#include "model/weights/safetensors.h"

namespace kinora {

// How a tensor changes before it is rounded or copied.
struct TensorScales {
  std::vector<float> columns;     // multiply; empty: nothing
  std::vector<float> rows;        // divide every row by its number; of a vector, its elements
  std::vector<float> importance;  // of the columns: mean square of the inputs, after scaling
  // For 4 bits in place of the importance; weights that share their inputs share it.
  std::shared_ptr<const Compensation> compensation;
};

// By the names of the files. `names` maps common names (weights_binder.h) to them. Uses up the
// moments of the sample.
std::map<std::string, TensorScales> choose_scales(
    const ThreadPool& threads, const TensorFiles& files,
    const std::map<std::string, std::string, std::less<>>& names, InputSample& sample,
    int64_t layers, const Rounding& rounding, const CancelToken& cancel, Progress* progress);

// f32 values of a floating-point tensor.
std::vector<float> values_of(const Tensor& tensor);

}  // namespace kinora
