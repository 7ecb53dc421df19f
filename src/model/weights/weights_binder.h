// Finds the tensors of a model directory by name, whatever generation of names it uses, and keeps
// track of what does not fit. Used when a model is loaded: take_decoder (weights.h) takes the
// decoder's tensors, the family takes its tower's, and finish() reports all problems at once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/context.h"
#include "model/weights/safetensors.h"
#include "model/weights/weights.h"

namespace kinora {

// How names begin in some generation of files, and in the common form, which is the newest one.
struct TensorPrefix {
  std::string_view own;
  std::string_view common;
};

// The common form of a name: "model.language_model.*" and "lm_head.weight" for the decoder, the
// family's own prefixes for the rest. Names that belong to none are left alone.
std::string common_tensor_name(std::string_view name,
                               std::span<const TensorPrefix> family_prefixes = {});

class WeightsBinder {
 public:
  // `family_prefixes` are those of a family's tower; the first that fits counts.
  explicit WeightsBinder(TensorFiles files, std::span<const TensorPrefix> family_prefixes = {});

  bool has(std::string_view name) const { return sources_.find(name) != sources_.end(); }
  // The tensor of this common name and shape. Notes what is wrong and returns an undefined tensor
  // when it is absent, has another shape or no floating-point type.
  Tensor take(const std::string& name, const Shape& shape);
  LinearWeights take_linear(const std::string& name, int64_t out, int64_t in, bool bias);
  // The same, but a weight that can stay in 4 or 8 bits does.
  LinearWeights take_product(const std::string& name, int64_t out, int64_t in, bool bias);
  NormWeights take_norm(const std::string& name, int64_t width);
  // A convolution [out, …] whose stride is its size: a product of flattened patches.
  Tensor take_patches(const std::string& name, const Shape& shape);
  // A tensor that the architecture has and kinora does not need.
  void pass_over(std::string_view name);

  // Throws one error that lists every missing, extra or misshapen tensor. With `check_finite`
  // reads every number too and throws with the first tensor that holds a NaN or an infinity.
  WeightCount finish(const Context& context, bool check_finite) const;

 private:
  void expect_finite(const Context& context) const;
  std::string directory_name(const std::string& common) const;
  // The name in the files of a tensor of this shape; empty, and noted, when there is none.
  std::string find(const std::string& name, const Shape& shape);

  TensorFiles files_;
  std::map<std::string, std::string, std::less<>> sources_;  // common name → name in the files
  // Prefixes of the directory's own generation, used to name missing tensors the way it would.
  std::map<std::string, std::string, std::less<>> own_prefixes_;
  std::set<std::string, std::less<>> used_;
  std::vector<std::pair<std::string, Tensor>> taken_;
  std::vector<std::pair<std::string, std::shared_ptr<const PackedMatrix>>> taken_packed_;
  std::vector<std::string> missing_;
  std::vector<std::string> misshapen_;
  std::vector<std::string> repeated_;
  WeightCount count_;
};

}  // namespace kinora
