#include "model/families/families.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

namespace kinora {

// One line for each, in the order in which messages name them. The folder of that name defines
// `const Family& NAME_family()`.
#define KINORA_FAMILIES(NAME) \
  NAME(qwen2_5_vl)            \
  NAME(llava_onevision)       \
  NAME(qwen3_vl)              \
  NAME(llama)                 \
  NAME(qwen2)                 \
  NAME(qwen3)

#define KINORA_DECLARE(NAME) const Family& NAME##_family();
KINORA_FAMILIES(KINORA_DECLARE)
#undef KINORA_DECLARE

std::span<const Family* const> families() {
#define KINORA_LIST(NAME) &NAME##_family(),
  static const std::array list = {KINORA_FAMILIES(KINORA_LIST)};
#undef KINORA_LIST
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
