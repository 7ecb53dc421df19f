// The ids of a reference case (tests/fixtures/cases): those of its prompt, and the greedy answer.
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "model/weights/safetensors.h"

namespace kinora::testing {

struct ReferenceIds {
  ReferenceIds(const std::string& model, const std::string& place) {
    const std::string base = KINORA_FIXTURES "/cases/" + model + "/" + place;
    std::ifstream file(base + ".json");
    about = nlohmann::json::parse(file);
    text = about.at("expanded_text").get<std::string>();
    answer = about.at("greedy").get<std::vector<int32_t>>();
    const Tensor ids = SafetensorsFile::open(real_files(), base + ".safetensors").raw("input_ids");
    const auto* begin = reinterpret_cast<const int32_t*>(ids.data<uint8_t>());
    prompt.assign(begin, begin + ids.size(0) / 4);
  }

  nlohmann::json about;  // the case: messages, pictures
  std::string text;      // of the prompt, with every place of a picture's token
  std::vector<int32_t> prompt;
  std::vector<int32_t> answer;  // 64 of them
};

}  // namespace kinora::testing
