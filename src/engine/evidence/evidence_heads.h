// Which heads of a model point at what an answer is about: a small table beside the model's files
// (kinora-evidence.json), written by `kinora calibrate` and described in docs/methods/evidence.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attention/row_mass.h"
#include "base/file.h"
#include "model/model.h"

namespace kinora {

struct EvidenceHeads {
  std::string model;  // family and number of parameters
  int layers = 0;     // of the model
  int64_t heads = 0;  // of a layer
  std::vector<LayerHeads> chosen;
};

std::string to_json(const EvidenceHeads& table);
// Throws a bad_input error that names the file and what is wrong with it.
EvidenceHeads parse_evidence_heads(std::string_view json, const std::string& path);

// What the model's table should say it is for.
EvidenceHeads evidence_heads_of(const ModelInfo& info);

// Where a model's table is looked for: its own directory, then the user's data directory.
std::vector<std::string> evidence_table_places(const std::string& model_directory);

// From the model's table; without one all heads of the layers in the middle. A table of another
// model is refused.
std::vector<LayerHeads> find_evidence_heads(const FileSystem& files, const std::string& directory,
                                            const ModelInfo& info);

}  // namespace kinora
