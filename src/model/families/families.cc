#include "model/families/families.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

#include "model/families/llama/llama.h"
#include "model/families/llava_onevision/llava_onevision.h"
#include "model/families/qwen2/qwen2.h"
#include "model/families/qwen2_5_vl/qwen2_5_vl.h"
#include "model/families/qwen3/qwen3.h"
#include "model/families/qwen3_vl/qwen3_vl.h"

namespace kinora {

// One line for each, in the order in which messages name them.
std::span<const Family* const> families() {
  static const std::array list = {
      &qwen2_5_vl_family(),       // Qwen2.5-VL
      &llava_onevision_family(),  // LLaVA-OneVision, LLaVA-Video
      &qwen3_vl_family(),         // Qwen3-VL
      &llama_family(),            // Llama 3 and later
      &qwen2_family(),            // Qwen2, Qwen2.5
      &qwen3_family(),            // Qwen3
  };
  return list;
}

const Family* find_family(std::string_view model_type) {
  const auto found = std::ranges::find(families(), model_type, &Family::model_type);
  return found == families().end() ? nullptr : *found;
}

const Family& family_of(const ConfigFiles& config) {
  const std::string type = config.model_type();
  if (const Family* found = find_family(type)) return *found;
  std::vector<std::string_view> known;
  for (const Family* family : families()) known.push_back(family->model_type());
  config.top().unsupported("model_type",
                           fmt::format("is '{}', which kinora does not know; it knows {}", type,
                                       fmt::join(known, ", ")));
}

std::string seeing_families() {
  std::vector<std::string_view> names;
  for (const Family* family : families()) {
    if (family->sees()) names.push_back(family->model_type());
  }
  return fmt::format("{}", fmt::join(names, " or "));
}

}  // namespace kinora
