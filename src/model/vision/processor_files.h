// The processor settings of a model directory, wherever its generation of Hugging Face files keeps
// them: preprocessor_config.json and (seldom) video_preprocessor_config.json, or, from
// transformers 5 on, both inside processor_config.json. Used by the processors.
#pragma once

#include <string>

#include "base/file.h"

namespace kinora {

struct ProcessorFiles {
  std::string image;  // JSON text
  std::string video;  // empty when the directory has none of its own
  std::string where;  // path of the file, for errors
};

// Throws not_found when the directory has no processor settings.
ProcessorFiles read_processor_files(const FileSystem& files, const std::string& directory);

}  // namespace kinora
