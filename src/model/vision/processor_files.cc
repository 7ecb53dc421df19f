#include "model/vision/processor_files.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/vision/processor_pixels.h"

namespace kinora {

ProcessorFiles read_processor_files(const FileSystem& files, const std::string& directory) {
  constexpr int64_t limit = 1 << 20;
  const std::string old_path = join_path(directory, "preprocessor_config.json");
  const std::string video_path = join_path(directory, "video_preprocessor_config.json");
  const std::string new_path = join_path(directory, "processor_config.json");
  ProcessorFiles result;
  if (files.is_file(old_path)) {
    result.where = old_path;
    result.image = files.read(old_path, limit);
    if (files.is_file(video_path)) {
      result.video = files.read(video_path, limit);
      parse_processor_json(result.video, video_path);  // so that an error names this file
    }
    return result;
  }
  if (files.is_file(new_path)) {
    const nlohmann::json all = parse_processor_json(files.read(new_path, limit), new_path);
    const auto part = [&](const char* key) {
      const auto found = all.find(key);
      return found != all.end() && found->is_object() ? found->dump() : std::string();
    };
    result = {part("image_processor"), part("video_processor"), new_path};
  }
  if (result.image.empty()) {
    throw Error(ErrorKind::not_found,
                fmt::format("{} has neither preprocessor_config.json nor an image_processor in "
                            "processor_config.json; download the model again",
                            directory));
  }
  return result;
}

}  // namespace kinora
