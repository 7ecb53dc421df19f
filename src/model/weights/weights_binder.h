// Finds tensors by name, whatever generation of names a directory uses, and keeps account of what
// does not fit. Used only by weights.cc.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/weights/safetensors.h"

namespace kinora {

// The names of the newest generation are the common form: "model.language_model.*",
// "model.visual.*", "model.vision_tower.*", "model.multi_modal_projector.*",
// "model.image_newline", "lm_head.weight". Names that belong to none are left alone.
std::string common_tensor_name(std::string_view name);

class WeightsBinder {
 public:
  explicit WeightsBinder(const TensorFiles& files);

  bool has(std::string_view name) const { return sources_.find(name) != sources_.end(); }
  // The tensor of this common name and shape. Notes what is wrong and returns an undefined tensor
  // when it is absent, has another shape or no floating-point type.
  Tensor take(const std::string& name, const Shape& shape);
  // A tensor that the architecture has and kinora does not need.
  void pass_over(std::string_view name);

  int64_t parameters() const { return parameters_; }
  int64_t bytes() const { return bytes_; }
  const std::vector<std::pair<std::string, Tensor>>& taken() const { return taken_; }

  // Throws when anything was wrong or left over.
  void finish() const;

 private:
  std::string directory_name(const std::string& common) const;

  const TensorFiles* files_;
  std::map<std::string, std::string, std::less<>> sources_;  // common name → name in the files
  // Prefixes of the directory's own generation, to speak of missing tensors as it would.
  std::map<std::string, std::string, std::less<>> own_prefixes_;
  std::set<std::string, std::less<>> used_;
  std::vector<std::pair<std::string, Tensor>> taken_;
  std::vector<std::string> missing_;
  std::vector<std::string> misshapen_;
  std::vector<std::string> repeated_;
  int64_t parameters_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace kinora
